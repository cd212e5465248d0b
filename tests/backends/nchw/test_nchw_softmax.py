"""Softmax along any axis, on the host and on a GPU, beside Chainer's own on NumPy."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.activation.log_softmax import LogSoftmaxGrad
from chainer.functions.activation.softmax import _SoftmaxGrad
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.nchw.softmax import Softmaxes
from tests.backends.primitive_cases import (
    EPS32,
    FLOAT16,
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    exact,
    seeds,
    storage_dtypes,
)
from tests.cases import tries

logs = pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
# A thread, some threads, a warp, a block for a row, whole vectors or not.
counts = st.sampled_from([1, 2, 3, 8, 10, 21, 33, 64, 65, 100, 136, 520, 1000, 1031])


class Device:
    """Softmax of NumPy arrays on one side, the host or a GPU."""

    def __init__(self, side):
        self.side = side
        self.softmaxes = Softmaxes(side.cuda.launcher, side.cuda.cudnn)

    def forward(self, x, axis, log, misaligned=False):
        """Returns y."""
        return self.side.receive(self.softmaxes.softmax(self.side.send(x, misaligned), axis, log))

    def backward(self, y, dy, axis, log, misaligned=False):
        """Returns dx."""
        y, dy = self.side.send((y, dy), misaligned)
        return self.side.receive(self.softmaxes.softmax_backward(y, dy, axis, log))


@pytest.fixture(scope="module")
def device(each_side):
    return Device(each_side)


def forward_of_chainer(x, axis, log):
    """Returns y in float64, and its bound in float32, in which exp and log are right to 2 ulp."""
    x = exact(x)
    y = (F.log_softmax if log else F.softmax)(x, axis).array
    count, distance = x.shape[axis], np.abs(x - x.max(axis, keepdims=True))
    # Of a sum of exponentials: each one's distance from the largest is rounded, which it makes up for by being smaller.
    of_sum = accumulated(2 * count + 8, 1)
    if log:
        return y, of_sum + 4 * EPS32 * (distance + np.log(count))
    smallest = 2.0**-146  # some subnormal ones
    return y, y * (of_sum + np.where(y > 0, distance, 0) * EPS32) + smallest


def backward_of_chainer(y, dy, axis, log):
    """Returns dx in float64, and its bound in float32."""
    y, dy = map(exact, (y, dy))
    gradient = LogSoftmaxGrad(np, y.shape, y.dtype, axis) if log else _SoftmaxGrad(axis)
    dx = gradient.apply(tuple(map(chainer.as_variable, (y, dy))))[0].array
    terms, factor = (dy, np.exp(y)) if log else (y * dy, y)
    magnitude = np.abs(terms).sum(axis, keepdims=True)
    rounded = np.abs(dy) * (1 if log else y) + factor * magnitude
    return dx, factor * accumulated(y.shape[axis] + 1, magnitude) + 6 * EPS32 * rounded


def check(device, x, dy, axis, log, misaligned=False):
    """Checks both passes."""
    y = device.forward(x, axis, log, misaligned)
    expected, bound = forward_of_chainer(x, axis, log)
    assert_close(y, expected, x.dtype, bound)
    expected, bound = backward_of_chainer(y, dy, axis, log)
    assert_close(device.backward(y, dy, axis, log, misaligned), expected, x.dtype, bound)


@st.composite
def cases(draw):
    """Returns a shape and one of its axes: long rows, columns, and small arrays of any number of axes."""
    kind = draw(st.sampled_from(["rows", "columns", "any"]))
    if kind == "rows":
        return (draw(st.sampled_from([1, 2, 5, 17])), draw(counts)), draw(st.sampled_from([1, -1]))
    if kind == "columns":
        inner = draw(st.sampled_from([(2,), (7, 5), (64,), (9, 9)]))
        return (draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 21, 150])), *inner), 1
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    return shape, draw(st.integers(-len(shape), len(shape) - 1))


@settings(max_examples=tries(150))
@given(
    case=cases(),
    log=st.booleans(),
    dtype=storage_dtypes,
    spread=st.sampled_from([1.0, 20.0, 1000.0]),
    masked=st.booleans(),
    misaligned=st.booleans(),
    seed=seeds,
)
def test_softmax_is_chainers(device, case, log, dtype, spread, masked, misaligned, seed):
    shape, axis = case
    rng = np.random.default_rng(seed)
    x = arrays(rng, shape, dtype, spread)
    if masked:  # all but one of each line may be
        drop = rng.random(shape) < 0.3
        np.put_along_axis(drop, rng.integers(0, shape[axis], drop.max(axis, keepdims=True).shape), False, axis)
        x[drop] = -np.inf
    check(device, x, arrays(rng, shape, dtype), axis, log, misaligned)


@logs
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((2, 100_003), 1), ((1, 30_000, 3), 1), ((3, 8, 13, 17), 1)])
def test_long_lines(device, shape, axis, dtype, log):
    rng = np.random.default_rng(0)
    check(device, arrays(rng, shape, dtype, 2.0), arrays(rng, shape, dtype), axis, log)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("inner", [1, 3])
@pytest.mark.parametrize("repeated", [1, 100])
def test_numbers_of_any_size(device, dtype, inner, repeated):
    """Nothing overflows on the way."""
    largest = 65504 if dtype == FLOAT16 else 1e38
    x = np.array([[largest, -largest, 0], [-largest] * 3, [0, -np.inf, 0]], dtype)
    x = np.repeat(np.tile(x, (1, repeated))[..., None], inner, axis=2)
    y = exact(device.forward(x, 1, False))[:, :3, 0] * repeated
    np.testing.assert_allclose(y, [[1, 0, 0], [1 / 3] * 3, [0.5, 0, 0.5]], rtol=float(np.finfo(np.float16).eps) * 8)
    # Not Chainer's, which adds what is subtracted from x to its largest number.
    distance = exact(x) - exact(x).max(1, keepdims=True)
    expected = distance - np.log(np.exp(distance).sum(1, keepdims=True))
    assert_close(device.forward(x, 1, True), expected, dtype, forward_of_chainer(x, 1, True)[1])


@logs
@pytest.mark.parametrize("shape", [(3, 5), (3, 200), (3, 5, 2)])
@pytest.mark.parametrize("spoilt", [[np.nan], [np.inf], [-np.inf] * 500], ids=["NaN", "inf", "all -inf"])
def test_a_line_without_a_result_is_nan(device, shape, spoilt, log):
    """As Chainer's is; the other lines have theirs."""
    x = np.zeros(shape, np.float32)
    line = x[1] if x.ndim == 2 else x[1, :, 1]
    line[: len(spoilt)] = spoilt[: len(line)]
    is_nan = np.isnan(device.forward(x, 1, log))
    line[:] = np.nan
    np.testing.assert_array_equal(is_nan, np.isnan(x))


@logs
@pytest.mark.parametrize(
    ("shape", "launches"), [((0, 3), 0), ((3, 0), 0), ((3, 0, 2), 0), ((3, 2, 0), 0), ((300, 70), 1), ((3, 5, 70), 1)]
)
def test_one_launch_or_none_of_nothing(device, shape, launches, log):
    if device.side.is_gpu:
        pytest.skip("counts launches of the stand-in")
    x, launched = np.ones(shape, np.float16), device.side.cuda.launcher.launches
    before = len(launched)
    y = device.forward(x, 1, log)
    assert (y.shape, len(launched) - before) == (shape, launches)
    assert device.backward(y, y, 1, log).shape == shape
    assert len(launched) - before == 2 * launches


@pytest.mark.parametrize(("shape", "axis"), [((2, 3), 2), ((2, 3), -3), ((), 0)])
def test_an_axis_that_is_not_there(device, shape, axis):
    with pytest.raises(IndexError):
        device.forward(np.zeros(shape, np.float32), axis, False)
