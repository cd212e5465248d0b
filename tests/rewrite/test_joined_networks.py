"""What is joined in networks, moved and computed again, seen by K-FAC, and said in the report."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.backends import primitives_of
from mixprec.functions import layer_gradients
from mixprec.functions.layer_gradients import Observer
from mixprec.rewrite.fusions import ADD_RELU, DUAL, POOLED, RELU
from models import MODELS
from tests.activation_memory.test_offloading_odd import memory  # noqa: F401
from tests.cases import first, pairs
from tests.rewrite import test_joined
from tests.rewrite.test_fusion import calls, normalized, projection
from tests.rewrite.twins import assert_same, beside, images, new


def _gradients(model, x):
    model.cleargrads()
    result = model(x)
    loss = sum(F.sum(y**2) for y in (result if isinstance(result, tuple) else (result,)))
    loss.backward()
    return {name: param.grad for name, param in model.namedparams() if param.grad is not None} | {"loss": loss.array}


@pytest.mark.parametrize("function", [test_joined.branches_after_it, test_joined.pooled_and_branching, projection])
def test_what_is_recomputed_or_offloaded_has_the_same_bits(function, memory):  # noqa: F811
    kept, recomputed, offloaded = (new(function) for _ in range(3))
    for model in (kept, recomputed, offloaded):
        mixprec.convert(model, compute="float16")
    recomputed = mixprec.recompute(recomputed)
    for call in range(4):
        expected = _gradients(kept, images(call))
        test_joined.assert_equal(_gradients(recomputed, images(call)), expected)
        with memory:
            test_joined.assert_equal(_gradients(offloaded, images(call)), expected)
    assert memory.plans


@pytest.mark.parametrize(("late", "how"), first(4, pairs([0, 3], test_joined.ALL[::-1])))
def test_what_is_looked_at_has_arrays_that_offload_has_moved(how, late, memory):  # noqa: F811
    function, which = how
    look = function(lambda m, h: F.sum(F.tanh(h)), which, "at once")
    kept, offloaded = (new(lambda m, x: look(m, x) if calls(m) > late else m.conv2(m.stem(x))) for _ in range(2))
    for model in (kept, offloaded):
        mixprec.convert(model, compute="float32")
    for call in range(6):
        expected = _gradients(kept, images(call))
        with memory:
            test_joined.assert_equal(_gradients(offloaded, images(call)), expected)


# Networks that were not prepared.


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
    "densenet": (lambda: chainer.Sequential(_stem(), _DenseBlock()), {RELU: 2, POOLED: 1, ADD_RELU: 0, DUAL: 0, "": 0}),
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
    _, report = beside(test_joined.NOT_JOINED["relu used after"][0], example=images(0))
    assert "ReLU, its max pooling apart: the ReLU is needed elsewhere" in str(report)


def test_gradients_that_accumulate():
    plain, converted = new(test_joined.branches_after_it), new(test_joined.branches_after_it)
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


@pytest.mark.parametrize("function", [test_joined.branches_after_it, test_joined.pooled_and_branching])
def test_an_observer_of_gradients_sees_what_it_sees_of_single_ones(function, monkeypatch):
    found = []
    for is_joined in (True, False):
        if not is_joined:
            test_joined.join_nothing(monkeypatch)
        model, observer = new(function), _Seen()
        mixprec.convert(model, images(0), compute="float16")
        model.cleargrads()
        with layer_gradients.observing(observer):
            F.sum(model(images(1)) ** 2).backward()
        found.append(observer.moments | {name: param.grad for name, param in model.namedparams()})
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], err_msg=str(name))
