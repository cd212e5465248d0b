"""Two batch normalizations in one pass, and one with its max pooling: what is joined, and that numbers do not tell."""

import weakref

import chainer
import chainer.functions as F
import numpy as np
import pytest

import mixprec
from mixprec.rewrite import deferred
from mixprec.rewrite.fusions import ADD_RELU, DUAL, NAMES, POOLED, RELU
from tests.activation_memory.test_offloading_odd import memory  # noqa: F401
from tests.cases import first, pairs
from tests.comparison import assert_equal
from tests.rewrite.test_fusion import KEPT, LOOKS, WHEN, calls, normalized, projection
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


def join_nothing(monkeypatch):
    """Has pairs, and what is pooled, computed one by one."""
    monkeypatch.setattr(deferred, "FUSIONS", tuple(each for each in deferred.FUSIONS if each.name != POOLED))
    monkeypatch.setattr(deferred, "why_not_dual", lambda total: "")


_DUAL = {"/bn2": [DUAL], "/bn3": [DUAL]}
JOINED = [
    *((shortcut_first, _DUAL), (two_in_place, _DUAL), (of_two_dimensions, _DUAL)),
    (branches_after_it, {"/bn1": [ADD_RELU], **_DUAL}),
    *((pooled, {"/bn1": [POOLED]}), (pooled_by_default, {"/bn1": [POOLED]})),
    (pooled_and_branching, {"/bn1": [POOLED], "/bn2": [ADD_RELU]}),
]


@pytest.mark.parametrize("example", [None, images(0)], ids=["", "example"])
@pytest.mark.parametrize(("function", "expected"), JOINED, ids=[function.__name__ for function, _ in JOINED])
def test_what_is_joined(function, expected, example, announced):
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
    "no relu": (lambda m, x: F.max_pooling_2d(normalized(m, x), 3, 2), {"/bn1": ["MaxPoolingND follows"]}),
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
def test_what_is_not_joined(name, announced):
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
ALL = [(_dual_looked_at, which) for which in _DUALS] + [(_pool_looked_at, which) for which in _POOLS]


@pytest.mark.parametrize(("name", "how", "when"), first(40, pairs(list(LOOKS), ALL, list(WHEN))))
def test_who_looks_sees_what_plain_chainer_would_show(name, how, when):
    function, which = how
    example = images(0) if when == "after an example" else None
    model, _ = beside(function(LOOKS[name], which, when), calls=4, example=example)
    assert {DUAL, POOLED}.isdisjoint(each for found in fusions(model).values() for each in found)


@pytest.mark.parametrize(("keep_from", "how"), pairs([1, 2, 3], ALL))
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


def _pooled_twice(m, x):
    r = F.relu(normalized(m, x))
    return F.sin(F.max_pooling_2d(r, 3, 2)) * F.max_pooling_2d(r, 3, 2), r


def _two_relus_pooled(m, x):
    h = normalized(m, x)
    one, two = F.relu(h), F.relu(h)
    return F.sin(F.max_pooling_2d(one, 3, 2)) * F.max_pooling_2d(two, 3, 2), one


@pytest.mark.parametrize("function", [_pooled_twice, _two_relus_pooled])
def test_two_poolings_of_one_normalization(function):
    def differentiated(m, x):
        y, r = function(m, x)
        return y, *chainer.grad([F.sum(y * y)], [r])

    beside(differentiated)


def _too_small(m, x):
    r = F.relu(normalized(m, x[:, :, :2, :2]))
    try:
        return F.max_pooling_2d(r, 3, 2, cover_all=False)
    except Exception:
        return F.average_pooling_2d(r, 2)


def test_statistics_move_if_what_is_joined_is_refused():
    beside(_too_small)
    plain, converted = (
        new(lambda m, x: F.max_pooling_2d(F.relu(normalized(m, x)), 3, 2, cover_all=False)) for _ in range(2)
    )
    mixprec.convert(converted, compute="float32")
    for model in (plain, converted):
        with pytest.raises(Exception, match=r"window|pooling|size"):
            model(images(0, (3, 3, 2, 2)))
    np.testing.assert_allclose(converted.bn1.avg_mean, plain.bn1.avg_mean, atol=1e-6)


def test_another_sum_than_the_one_that_was_unchained():
    def function(m, x):
        x = m.stem(x)
        h = m.bn1(m.conv1(x))
        y = F.relu(h + m.bn2(m.conv2(x)))
        y.unchain_backward()
        return F.tanh(h + m.conv3(x.array)) * y

    beside(function)


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
    assert fusions(model)["/bn3"] == ["it is added to another batch normalization, which has stochastic depth"]
    assert "which has stochastic depth" in str(report)


@pytest.mark.parametrize("compute", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("function", [branches_after_it, pooled_and_branching, projection])
def test_a_joined_step_has_the_bits_of_one_whose_parts_are_computed_apart(function, compute, monkeypatch):
    found = []
    for joined in (True, False):
        model = new(function)
        if not joined:
            join_nothing(monkeypatch)
        mixprec.convert(model, compute=compute)
        found.append([step(model, images(call)) for call in range(2)])
    for one, other in zip(*found, strict=True):
        assert_equal(one, other)


def test_nothing_that_was_joined_outlives_its_graph(no_collector):
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
    for call in range(3):
        y = model(images(call))
        assert all(array() is not None for array in model.notes)
        del y
        assert all(array() is None for array in model.notes)
        with chainer.no_backprop_mode():
            model(images(call))
        assert all(array() is None for array in model.notes)


def test_a_kept_one_is_a_result():
    model, _ = beside(lambda m, x: (F.max_pooling_2d(h := F.relu(normalized(m, x)), 3, 2), h), example=images(0))
    assert fusions(model)["/bn1"] == [RELU]
    model, _ = beside(lambda m, x: (F.relu(normalized(m, x) + (h := m.bn2(m.conv2(m.stem(x))))), h), example=images(0))
    assert fusions(model) == {"/bn1": [ADD_RELU], "/bn2": [KEPT], "/bn3": []}
