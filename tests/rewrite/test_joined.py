"""Two batch normalizations in one pass, and one with its max pooling: what is joined, and that numbers do not tell."""

import contextlib
import gc
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.backends import primitives_of
from mixprec.functions import layer_gradients
from mixprec.functions.layer_gradients import Observer
from mixprec.rewrite import deferred
from mixprec.rewrite.fusions import ADD_RELU, DUAL, NAMES, POOLED, RELU
from models import MODELS
from tests.activation_memory.test_offloading_odd import memory  # noqa: F401
from tests.cases import first, pairs
from tests.rewrite.test_fusion import KEPT, LOOKS, WHEN, announced, calls, normalized, projection  # noqa: F401
from tests.rewrite.twins import assert_same, beside, fusions, images, new, site, step


def shortcut_first(m, x):
    x = m.stem(x)
    return F.relu(m.bn3(m.conv3(x)) + m.bn2(m.conv2(x)))


def two_in_place(m, x):
    x = m.stem(x)
    h = m.bn2(m.conv2(x))
    h += m.bn3(m.conv3(x))
    return F.relu(h)


def branches_after_it(m, x):
    """Its gradient is a sum of two terms."""
    h = shortcut_first(m, x)
    return F.relu(m.bn1(m.conv1(h)) + h)


def of_two_dimensions(m, x):
    h = F.average(m.stem(x), axis=(2, 3))
    return F.relu(m.bn2(h * 2) + m.bn3(h * h))


def pooled(m, x):
    return m.conv2(F.max_pooling_2d(F.relu(normalized(m, x)), 3, 2, 1, cover_all=False))


def pooled_by_default(m, x):
    return F.max_pooling_2d(F.relu(normalized(m, x)), 3, stride=2)


def pooled_and_branching(m, x):
    h = pooled_by_default(m, x)
    return F.relu(m.bn2(m.conv2(h)) + h)


_DUAL = {"/bn2": [DUAL], "/bn3": [DUAL]}
JOINED = [
    *((shortcut_first, _DUAL), (two_in_place, _DUAL), (of_two_dimensions, _DUAL)),
    (branches_after_it, {"/bn1": [ADD_RELU], **_DUAL}),
    *((pooled, {"/bn1": [POOLED]}), (pooled_by_default, {"/bn1": [POOLED]})),
    (pooled_and_branching, {"/bn1": [POOLED], "/bn2": [ADD_RELU]}),
]


@pytest.mark.parametrize("example", [None, images(0)], ids=["", "example"])
@pytest.mark.parametrize(("function", "expected"), JOINED, ids=[function.__name__ for function, _ in JOINED])
def test_what_is_joined(function, expected, example, announced):  # noqa: F811
    model, report = beside(function, example=example)
    assert {name: found for name, found in fusions(model).items() if found} == expected
    found = [each for sites in expected.values() for each in sites]
    assert report.fused == {name: found.count(name) for name in NAMES} | {"": 0}
    assert not announced.records


NOT_JOINED = {
    "other pool": (lambda m, x: F.max_pooling_2d(F.relu(normalized(m, x)), 2), {"/bn1": [RELU]}),
    "stride": (lambda m, x: F.max_pooling_2d(F.relu(normalized(m, x)), 3, 1), {"/bn1": [RELU]}),
    "indices": (
        lambda m, x: F.max_pooling_2d(F.relu(normalized(m, x)), 3, 2, return_indices=True)[0],
        {"/bn1": [RELU]},
    ),
    "no relu": (
        lambda m, x: F.max_pooling_2d(normalized(m, x), 3, 2),
        {"/bn1": ["MaxPoolingND follows"]},
    ),
    "relu used before": (
        lambda m, x: F.sum(F.tanh(h := F.relu(normalized(m, x)))) + F.sum(F.max_pooling_2d(h, 3, 2)),
        {"/bn1": [RELU]},
    ),
    "relu used after": (
        lambda m, x: F.sum(F.max_pooling_2d(h := F.relu(normalized(m, x)), 3, 2)) + F.sum(F.tanh(h)),
        {"/bn1": [RELU]},
    ),
    "shortcut used before": (
        lambda m, x: F.sum(F.tanh(h := m.bn3(m.conv3(m.stem(x))))) + F.relu(normalized(m, x) + h),
        {"/bn1": [ADD_RELU], "/bn3": ["it is used by 2: Tanh, Add"]},
    ),
    "shortcut used after": (
        lambda m, x: F.relu(normalized(m, x) + (h := m.bn3(m.conv3(m.stem(x))))) + F.tanh(h),
        {"/bn1": [ADD_RELU], "/bn3": ["it is used by 2: Add, Tanh"]},
    ),
    "sigmoid first": (
        lambda m, x: F.relu(F.sigmoid(normalized(m, x)) + m.bn3(m.conv3(m.stem(x)))),
        {"/bn1": ["Sigmoid follows"], "/bn3": [ADD_RELU]},
    ),
}


@pytest.mark.parametrize("name", NOT_JOINED)
def test_what_is_not_joined(name, announced):  # noqa: F811
    function, expected = NOT_JOINED[name]
    model, _ = beside(function, example=images(0))
    assert {name: found for name, found in fusions(model).items() if found} == expected
    assert not announced.records


# Somebody looks at what lies between, in the second call for the first time.


def _dual_looked_at(look, which, when):
    def function(m, x):
        later = WHEN[when](m, x)
        del m.notes[:]
        x = m.stem(x)
        total = [F.sum(x) * 0.01]
        h1, h2 = m.bn1(m.conv1(x)), m.bn2(m.conv2(x))
        s = h1 + h2
        y = m.conv3(F.relu(s))
        if later:
            things = {"one": h1, "other": h2, "sum": s}
            total += [found for each in which if (found := look(m, things[each])) is not None]
        return y, sum(total[1:], total[0])

    return function


def _pool_looked_at(look, which, when):
    def function(m, x):
        later = WHEN[when](m, x)
        del m.notes[:]
        x = m.stem(x)
        total = [F.sum(x) * 0.01]
        h = m.bn1(m.conv1(x))
        y = F.relu(h)
        z = m.conv2(F.max_pooling_2d(y, 3, 2))
        if later:
            things = {"one": h, "relu": y}
            total += [found for each in which if (found := look(m, things[each])) is not None]
        return z, sum(total[1:], total[0])

    return function


_DUALS = [("one",), ("other",), ("sum",), ("one", "other"), ("other", "one"), ("sum", "other"), ("other", "sum")]
_POOLS = [("one",), ("relu",), ("one", "relu"), ("relu", "one")]
_ALL = [(_dual_looked_at, which) for which in _DUALS] + [(_pool_looked_at, which) for which in _POOLS]


@pytest.mark.parametrize(("name", "how", "when"), first(40, pairs(list(LOOKS), _ALL, list(WHEN))))
def test_who_looks_sees_what_plain_chainer_would_show(name, how, when):
    function, which = how
    example = images(0) if when == "after an example" else None
    model, _ = beside(function(LOOKS[name], which, when), calls=4, example=example)
    assert {DUAL, POOLED}.isdisjoint(each for found in fusions(model).values() for each in found)


@pytest.mark.parametrize(("keep_from", "how"), pairs([1, 2, 3], _ALL))
def test_gradients_of_what_the_user_keeps(how, keep_from):
    function, which = how

    def look(m, h):
        m.notes.append(h)

    def gradients(model, x, call):
        model.cleargrads()
        y, _ = model(x)
        F.sum(y**2).backward(retain_grad=True)
        kept = {str(number): h.grad for number, h in enumerate(model.notes)}
        assert call + 1 < keep_from or (kept and all(grad is not None for grad in kept.values()))
        return kept | {name: param.grad for name, param in model.namedparams()}

    WHEN["now"] = lambda m, x: calls(m) >= keep_from
    try:
        plain, converted = (new(function(look, which, "now")) for _ in range(2))
        mixprec.convert(converted, compute="float32")
        for call in range(4):
            expected = gradients(plain, images(call), call)
            assert_same(gradients(converted, images(call), call), expected)
    finally:
        del WHEN["now"]


def test_chainer_grad_by_what_is_joined():
    def function(m, x):
        x = m.stem(x)
        h, s = m.bn1(m.conv1(x)), m.bn2(m.conv2(x))
        y = m.conv3(F.relu(h + s))
        p = F.relu(m.bn3(m.conv3(x)))
        z = F.max_pooling_2d(p, 3, 2)
        return y, z, *chainer.grad([F.sum(F.tanh(y)) + F.sum(F.sin(z))], [h, s, p, x])

    beside(function)


def test_in_evaluation_they_are_computed_apart():
    with chainer.using_config("train", False):
        model, _ = beside(branches_after_it)
        assert site(model.bn3, train=False).fused == ADD_RELU
        model, _ = beside(pooled)
        assert site(model.bn1, train=False).fused == RELU


def test_frozen_normalizations_are_computed_apart():
    def function(m, x):
        x = m.stem(x)
        with chainer.using_config("train", False):
            h = m.bn3(m.conv3(x))
        return F.relu(m.bn2(m.conv2(x)) + h)

    model, _ = beside(function)
    assert fusions(model)["/bn2"] == [ADD_RELU]


def test_stochastic_depth_is_computed_apart():
    def function(m, x):
        x = m.stem(x)
        return F.relu(mixprec.functions.stochastic_depth(m.bn2(m.conv2(x)), 0.5) + m.bn3(m.conv3(x)))

    model = new(function)
    report = mixprec.convert(model, images(0), compute="float32")
    assert fusions(model)["/bn2"] == [ADD_RELU]
    assert fusions(model)["/bn3"] == ["it is added to another one, which has stochastic depth"]
    assert "which has stochastic depth" in str(report)


@pytest.mark.parametrize("compute", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("function", [branches_after_it, pooled_and_branching, projection])
def test_a_joined_step_has_the_bits_of_one_whose_parts_are_computed_apart(function, compute, monkeypatch):
    found = []
    for joined in (True, False):
        model = new(function)
        if not joined:
            fusions_apart = tuple(each for each in deferred.FUSIONS if each.name != POOLED)
            monkeypatch.setattr(deferred, "FUSIONS", fusions_apart)
            monkeypatch.setattr(deferred, "why_not_dual", lambda total: "")
        mixprec.convert(model, compute=compute)
        found.append([step(model, images(call)) for call in range(2)])
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_nothing_that_was_joined_outlives_its_graph():
    def function(m, x):
        x = m.stem(x)
        a, b = m.conv1(x), m.conv2(x)
        m.notes[:] = [weakref.ref(a.array), weakref.ref(b.array)]
        h = F.relu(m.bn1(a) + m.bn2(b))
        c = m.conv3(h)
        m.notes.append(weakref.ref(c.array))
        return F.max_pooling_2d(F.relu(m.bn3(c)), 3, 2)

    model = new(function)
    mixprec.convert(model, compute="float32")
    gc.disable()
    try:
        for call in range(3):
            y = model(images(call))
            assert all(array() is not None for array in model.notes)
            del y
            assert all(array() is None for array in model.notes)
            with chainer.no_backprop_mode():
                model(images(call))
            assert all(array() is None for array in model.notes)
    finally:
        gc.enable()


def test_a_kept_one_is_a_result():
    model, _ = beside(lambda m, x: (F.max_pooling_2d(h := F.relu(normalized(m, x)), 3, 2), h), example=images(0))
    assert fusions(model)["/bn1"] == [RELU]
    model, _ = beside(lambda m, x: (F.relu(normalized(m, x) + (h := m.bn2(m.conv2(m.stem(x))))), h), example=images(0))
    assert fusions(model) == {"/bn1": [ADD_RELU], "/bn2": [KEPT], "/bn3": []}


def _gradients(model, x):
    model.cleargrads()
    loss = F.sum(model(x) ** 2)
    loss.backward()
    return {name: param.grad for name, param in model.namedparams() if param.grad is not None} | {"loss": loss.array}


@pytest.mark.parametrize("function", [branches_after_it, pooled_and_branching, projection])
def test_what_is_recomputed_or_offloaded_has_the_same_bits(function, memory):  # noqa: F811
    found = {}
    for how in ("kept", "recomputed", "offloaded"):
        model = new(function)
        mixprec.convert(model, compute="float16")
        within = memory if how == "offloaded" else contextlib.nullcontext()
        if how == "recomputed":
            model = mixprec.recompute(model)
        found[how] = []
        for call in range(4):
            with within:
                found[how].append(_gradients(model, images(call)))
    assert memory.plans
    for how in ("recomputed", "offloaded"):
        for one, two in zip(found["kept"], found[how], strict=True):
            assert one.keys() == two.keys()
            for name, array in one.items():
                np.testing.assert_array_equal(array, two[name], err_msg=f"{how} {name}")


# Networks that nobody has prepared.


class _SqueezedBlock(chainer.Chain):
    """The block of an SE-ResNet: what is normalized last is scaled before the addition."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(8, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.squeeze, self.excite = L.Linear(8, 4), L.Linear(4, 8)
            self.shortcut = chainer.Sequential(L.Convolution2D(8, 8, 1, nobias=True), L.BatchNormalization(8))

    def forward(self, x):
        h = self.bn(self.conv(x))
        scale = F.sigmoid(self.excite(F.relu(self.squeeze(F.average(h, axis=(2, 3))))))
        return F.relu(h * F.broadcast_to(scale[:, :, None, None], h.shape) + self.shortcut(x))


def _stem():
    return chainer.Sequential(
        L.Convolution2D(3, 8, 7, 2, 3, nobias=True),
        L.BatchNormalization(8),
        F.relu,
        lambda h: F.max_pooling_2d(h, 3, 2, 1, cover_all=False),
    )


class _DenseBlock(chainer.Chain):
    """Two layers of a DenseNet: normalization, ReLU, convolution, and a concatenation."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.bn1, self.conv1 = L.BatchNormalization(8), L.Convolution2D(8, 8, 3, pad=1, nobias=True)
            self.bn2, self.conv2 = L.BatchNormalization(16), L.Convolution2D(16, 8, 3, pad=1, nobias=True)

    def forward(self, x):
        x = F.concat([x, self.conv1(F.relu(self.bn1(x)))])
        return F.concat([x, self.conv2(F.relu(self.bn2(x)))])


NETWORKS = {
    "resnet18": (lambda: MODELS["resnet18"](5), {RELU: 8, POOLED: 1, ADD_RELU: 5, DUAL: 6, "": 0}),
    "resnet50": (lambda: MODELS["resnet50"](5), {RELU: 32, POOLED: 1, ADD_RELU: 12, DUAL: 8, "": 0}),
    "resnext50": (lambda: MODELS["resnext50_32x4d"](5), {RELU: 32, POOLED: 1, ADD_RELU: 12, DUAL: 8, "": 0}),
    "se_resnet": (
        lambda: chainer.Sequential(_stem(), _SqueezedBlock()),
        {RELU: 0, POOLED: 1, ADD_RELU: 1, DUAL: 0, "": 1},
    ),
    "densenet": (
        lambda: chainer.Sequential(_stem(), _DenseBlock()),
        {RELU: 2, POOLED: 1, ADD_RELU: 0, DUAL: 0, "": 0},
    ),
}


@pytest.mark.parametrize("name", first(2, [*NETWORKS][::-1]))
def test_what_is_joined_in_networks(name):
    build, expected = NETWORKS[name]
    np.random.seed(0)
    plain = build()
    np.random.seed(0)
    model = build()
    report = mixprec.convert(model, compute="float32")
    x = images(0, (2, 3, 64, 64))
    expected_y, y = plain(x).array, model(x)
    F.sum(y).backward()
    np.testing.assert_allclose(y.array, expected_y, rtol=0, atol=1e-3 * abs(expected_y).max())
    model(x)
    assert report.fused == expected
    assert all(link.fused for link in report.links if link.kind == "BatchNormalization")


def test_the_report_says_what_is_apart_and_why():
    _, report = beside(lambda m, x: F.max_pooling_2d(F.relu(normalized(m, x)), 2), example=images(0))
    assert "ReLU, its max pooling apart: windows are 2x2 with stride 2x2, not 3x3 with 2x2" in str(report)
    _, report = beside(NOT_JOINED["relu used after"][0], example=images(0))
    assert "ReLU, its max pooling apart: the ReLU is needed elsewhere" in str(report)


def test_gradients_that_accumulate():
    plain, converted = new(branches_after_it), new(branches_after_it)
    mixprec.convert(converted, compute="float32")
    found = []
    for model in (plain, converted):
        model.cleargrads()
        for call in range(3):
            F.sum(model(images(call)) ** 2).backward()
        found.append({name: param.grad for name, param in model.namedparams()})
    assert_same(found[1], found[0])


class _Seen(Observer):
    """Notes the second moments of gradients of gammas and betas, as K-FAC takes them, by the bytes of gamma."""

    def __init__(self):
        self.moments = {}

    def filters(self, inputs, x, dy, w_shape, convolution):
        pass

    def scales(self, inputs, x, dy, arrays, saved, relu):
        moments = self.moments[arrays[0].tobytes()] = np.zeros((3, x.shape[-1]), np.float32)
        primitives_of(x).scale_moments(dy, x, *arrays, saved, moments, relu=relu)


@pytest.mark.parametrize("function", [branches_after_it, pooled_and_branching])
def test_an_observer_of_gradients_sees_what_it_sees_of_single_ones(function, monkeypatch):
    found = []
    for is_joined in (True, False):
        if not is_joined:
            monkeypatch.setattr(deferred, "FUSIONS", tuple(each for each in deferred.FUSIONS if each.name != POOLED))
            monkeypatch.setattr(deferred, "why_not_dual", lambda total: "")
        model, observer = new(function), _Seen()
        mixprec.convert(model, images(0), compute="float16")
        model.cleargrads()
        with layer_gradients.observing(observer):
            F.sum(model(images(1)) ** 2).backward()
        found.append(observer.moments | {name: param.grad for name, param in model.namedparams()})
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], err_msg=str(name))
