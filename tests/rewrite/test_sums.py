"""Convolutions that take the sums of the batch normalization after them: when a device is asked for that, and gives it.

The stand-in device computes own kernels on the host, and cuDNN's graphs with NumPy; its choice is made here.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.geometry import Following
from mixprec.precision.conversion_state import state_of
from tests.graph_capture.captured_runs import REQUIRED, Run, assert_same
from tests.stand_ins import fake_cudnn, graph_array
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)

WIDTH = 8  # cuDNN takes sums where both numbers of channels are multiples of it
SHAPE = (2, WIDTH, 5, 5)


class Block(chainer.Chain):
    """Two convolutions, each with a batch normalization; what is done with them is a function of (model, x)."""

    def __init__(self, function, nobias=True):
        super().__init__()
        self.function = function
        with self.init_scope():
            self.conv1 = L.Convolution2D(WIDTH, WIDTH, 3, pad=1, nobias=nobias)
            self.bn1 = L.BatchNormalization(WIDTH)
            self.conv2 = L.Convolution2D(WIDTH, WIDTH, 1, nobias=nobias)
            self.bn2 = L.BatchNormalization(WIDTH)

    def forward(self, x):
        return self.function(self, x)


def residual(m, x):
    """BN and ReLU, then BN, addition and ReLU."""
    h = F.relu(m.bn1(m.conv1(x)))
    return F.relu(m.bn2(m.conv2(h)) + h)


def kept(m, x):
    """What the convolution gives is wanted by somebody else, too."""
    m.kept = m.conv1(x)
    return F.tanh(m.bn1(m.kept)) + m.kept


def replaced_in_its_order(m, x):
    """Another array that lies in memory as the result did, so that no conversion of its order comes between."""
    h = m.conv1(x)
    h.array = (h.array.transpose(0, 2, 3, 1) * 2).transpose(0, 3, 1, 2)
    return F.relu(m.bn1(h))


def without_normalization(m, x):
    return F.relu(m.conv1(x))


def frozen(m, x):
    """The statistics are those that are kept."""
    h = m.conv1(x)
    with chainer.using_config("train", False):
        return F.relu(m.bn1(h))


def new(function, nobias=True, **how):
    np.random.seed(0)
    model = Block(function, nobias)
    report = mixprec.convert(model, **how)
    return model, report


def images(seed=0):
    return np.random.RandomState(seed).normal(size=SHAPE).astype(np.float32)


def step(model, x):
    """Forward and backward pass; returns result, gradients and running statistics by name, in float32."""
    model.cleargrads()
    y = model(x)
    F.sum(y * y).backward()
    found = {"y": y.array} | {path: param.grad for path, param in model.namedparams() if param.grad is not None}
    for link in (model.bn1, model.bn2):
        found |= {f"{link.name}/mean": link.avg_mean, f"{link.name}/var": link.avg_var}
    return {name: np.array(value, np.float32) for name, value in found.items()}


@pytest.fixture
def undecided(device, monkeypatch):  # noqa: F811
    """The device, which has not chosen anything so far."""
    monkeypatch.setattr(device, "_chosen", {})
    monkeypatch.setattr(device, "_last", (None, None, None))
    return device


@pytest.fixture
def on_device(host, undecided, monkeypatch):  # noqa: F811
    """Runs steps of a model on the stand-in, which takes sums wherever it has an engine; counts its graphs."""

    def choose(key, candidates):
        names = [name for name, _ in candidates]
        return "statistics" if "statistics" in names else names[0]

    monkeypatch.setattr(undecided.cudnn, "choose", choose)
    cudnn.configure(deterministic=False)  # with it cuDNN's sums are not taken

    def run(model, calls):
        host.send_link(model)
        found = []
        with host.eagerly():
            for number in range(calls):
                fake_cudnn.executed.clear()
                step_found = step(model, graph_array.array(images(number)))
                with_sums = sum("genstats" in kinds for kinds, _ in fake_cudnn.executed)
                found.append((with_sums, step_found))
        return found

    return run


def following(model, link="conv1"):
    return state_of(getattr(model, link)).convolution_sites[True, 0].following


# --- when


SUMS = [
    (residual, [0, 2, 2]),
    (kept, [0, 1, 1]),
    (replaced_in_its_order, [0, 0, 0]),
    (without_normalization, [0, 0, 0]),
    (frozen, [0] * 3),
]


@pytest.mark.parametrize(("function", "sums"), SUMS)
def test_a_convolution_takes_sums_from_the_second_call_on(on_device, function, sums):
    """The first call shows what follows. Nobody can tell by the numbers, which are those of NumPy."""
    (model, _), (twin, _) = new(function), new(function)
    found = on_device(model, len(sums))
    assert [with_sums for with_sums, _ in found] == sums
    for number, (_, numbers) in enumerate(found):
        expected = step(twin, images(number))
        assert numbers.keys() == expected.keys()
        for name, value in expected.items():
            error = np.abs(numbers[name] - value).max()
            assert error <= 0.02 * np.abs(value).max(), (number, name)


def test_with_an_example_it_takes_them_from_the_first_call_on(on_device):
    model, report = new(residual, example=images())
    assert (following(model), following(model, "conv2")) == (Following(relu=True), Following(relu=True, add=True))
    assert report.conv_statistics == 2
    assert "2 may be taken in the convolution before" in str(report)
    assert [with_sums for with_sums, _ in on_device(model, 2)] == [2, 2]


@pytest.mark.parametrize("how", [{"conv_statistics": False}, {"fuse": False}])
def test_it_can_be_switched_off(on_device, how):
    model, report = new(residual, example=images(), **how)
    assert report.conv_statistics == 0
    assert [with_sums for with_sums, _ in on_device(model, 2)] == [0, 0]


@pytest.mark.usefixtures("undecided")
def test_without_measuring_nothing_is_taken(host):  # noqa: F811
    model, _ = new(residual, example=images())
    host.send_link(model)
    fake_cudnn.executed.clear()
    with host.eagerly():
        step(model, graph_array.array(images()))
    assert not any("genstats" in kinds for kinds, _ in fake_cudnn.executed)


def test_a_convolution_with_a_bias_takes_none(on_device):
    model, _ = new(residual, nobias=False)
    assert [with_sums for with_sums, _ in on_device(model, 2)] == [0, 0]


def test_what_does_not_follow_any_more_is_taken_in_vain_once(on_device):
    """In between the statistics that are kept are used; after that the next call shows what follows again."""
    model, _ = new(lambda m, x: m.now(m, x), example=None)
    model.now = residual
    on_device(model, 2)
    model.now = without_normalization
    assert [with_sums for with_sums, _ in on_device(model, 2)] == [1, 0]
    model.now = residual
    assert [with_sums for with_sums, _ in on_device(model, 2)] == [1, 2]  # that of conv2 was not called meanwhile


def test_evaluation_takes_none_and_leaves_training_as_it_was(on_device):
    model, _ = new(residual)
    on_device(model, 2)
    fake_cudnn.executed.clear()
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        for _ in range(2):
            model(graph_array.array(images()))
    assert not any("genstats" in kinds for kinds, _ in fake_cudnn.executed)
    assert [with_sums for with_sums, _ in on_device(model, 1)] == [2]


def test_function_hooks_see_convolutions_that_take_none(on_device):
    model, _ = new(residual)
    on_device(model, 2)
    with chainer.function_hooks.TimerHook():
        assert [with_sums for with_sums, _ in on_device(model, 1)] == [0]
    assert [with_sums for with_sums, _ in on_device(model, 1)] == [2]


def test_the_same_bits_on_numpy():
    """Where nothing is chosen, nothing changes."""
    model, twin = (new(residual, conv_statistics=wanted)[0] for wanted in (True, False))
    for number in range(3):
        found, expected = step(model, images(number)), step(twin, images(number))
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


# --- captured


@pytest.mark.usefixtures("on_device")
def test_a_captured_step_takes_them_and_is_the_eager_one():
    captured, eager = (Run(capture).run(range(8)) for capture in (REQUIRED, None))
    assert captured.step.replays >= 2
    fake_cudnn.executed.clear()
    captured.run([8])
    assert sum("genstats" in kinds for kinds, _ in fake_cudnn.executed) == 6
    assert_same(captured, eager.run([8]))
