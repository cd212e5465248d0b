"""Poolings of planes, on the host and on a GPU, beside Chainer's own on NumPy."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.nchw import pooling
from mixprec.backends.nchw.pooling import PlanePoolings
from tests.backends.primitive_cases import (
    FLOAT16,
    FLOAT32,
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    exact,
    seeds,
    storage_dtypes,
)
from tests.cases import tries
from tests.stand_ins.cuda_sides import OnHost
from tests.stand_ins.device_stand_in import DeviceArray
from tests.stand_ins.kernels_on_host import odd_values

AVERAGES = ("average", "average_without_padding")
dtypes = pytest.mark.parametrize("dtype", STORAGE, ids=str)


class Device:
    """Poolings of NumPy arrays on one side, the host or a GPU."""

    def __init__(self, side):
        self.side = side
        self.poolings = PlanePoolings(side.cuda.launcher, side.cuda.cudnn)

    def forward(self, x, outputs, kind, *windows, misaligned=False):
        """Returns y (N, C, *outputs)."""
        y = self.side.send(np.full((*x.shape[:2], *outputs), np.nan, x.dtype), misaligned)
        self.poolings.pool(self.side.send(x, misaligned), y, kind, *windows)
        return self.side.receive(y)

    def backward(self, x, y, dy, kind, *windows, misaligned=False):
        """Returns dx."""
        return self.side.receive(self.poolings.pool_backward(*self.side.send((x, y, dy), misaligned), kind, *windows))


@pytest.fixture(scope="module")
def device(each_side):
    return Device(each_side)


def of_chainer(function, x, dy=None):
    """Returns ``(y, dx)`` of a function of Chainer in float64; ``dy``: ``None``, or a function of the shape of y."""
    x = chainer.Variable(exact(x))
    y = function(x)
    if dy is None:
        return y.array, None
    y.grad = exact(dy(y.shape))
    y.backward()
    return y.array, x.grad


def same(found, expected):
    """Asserts that an array holds these numbers exactly, but for the sign of 0."""
    assert found.shape == expected.shape
    with np.errstate(invalid="ignore"):  # a signalling NaN
        np.testing.assert_array_equal(exact(found), expected)


@st.composite
def cases(draw, overlapping_pad=True):
    """Returns ``(shape, window, stride, pad)``; ``overlapping_pad``: windows may lie in the padding altogether."""
    ndim = draw(st.sampled_from([2, 2, 3]))
    largest = 6 if ndim == 2 else 3
    window = tuple(draw(st.integers(1, largest)) for _ in range(ndim))
    stride = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    pad = tuple(draw(st.integers(0, size if overlapping_pad else size - 1)) for size in window)
    spatial = [
        draw(st.integers(max(size - 2 * before, 1), 13 if ndim == 2 else 7))
        for size, before in zip(window, pad, strict=True)
    ]
    return (draw(st.integers(1, 3)), draw(st.integers(1, 5)), *spatial), window, stride, pad


def drawn(rng, shape, dtype, values):
    """Returns numbers of all kinds if ``values`` is "odd", few different ones as behind a ReLU, or "normal" ones."""
    if values == "odd":
        x = odd_values(rng, shape, dtype)
        # Chainer on NumPy cannot tell -inf from padding.
        return np.where(exact(x) == -np.inf, np.array(-1, dtype), x)
    x = arrays(rng, shape, dtype)
    return x if values == "normal" else np.maximum(np.round(x.astype(np.float32)), 0).astype(dtype)


values_of_x = st.sampled_from(["odd", "equal", "equal", "normal"])


@settings(max_examples=tries(80))
@given(
    case=cases(),
    cover_all=st.booleans(),
    dtype=storage_dtypes,
    values=values_of_x,
    misaligned=st.booleans(),
    seed=seeds,
)
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # a signalling NaN
def test_max_is_chainers(device, case, cover_all, dtype, values, misaligned, seed):
    shape, *windows = case
    rng = np.random.default_rng(seed)
    x = drawn(rng, shape, dtype, values)
    gradients = []

    def dy(of_shape):
        gradients.append(arrays(rng, of_shape, dtype))
        return gradients[0]

    expected_y, expected_dx = of_chainer(lambda x: F.max_pooling_nd(x, *windows, cover_all), x, dy)
    y = device.forward(x, expected_y.shape[2:], "max", *windows, misaligned=misaligned)
    assert y.dtype == dtype
    same(y, expected_y)

    dx = device.backward(x, y, gradients[0], "max", *windows, misaligned=misaligned)
    _, magnitude = of_chainer(
        lambda x: F.max_pooling_nd(x, *windows, cover_all), x, lambda _: np.abs(exact(gradients[0]))
    )
    assert_close(dx, expected_dx, dtype, accumulated(np.prod(windows[0]), magnitude))


@settings(max_examples=tries(80))
@given(
    case=cases(overlapping_pad=False),
    kind=st.sampled_from(AVERAGES),
    dtype=storage_dtypes,
    misaligned=st.booleans(),
    seed=seeds,
)
def test_average_is_chainers(device, case, kind, dtype, misaligned, seed):
    shape, window, stride, pad = case
    rng = np.random.default_rng(seed)
    x, gradients = arrays(rng, shape, dtype), []
    pad_value = 0 if kind == "average" else None

    def dy(of_shape):
        gradients.append(arrays(rng, of_shape, dtype))
        return gradients[0]

    def average(x):
        return F.average_pooling_nd(x, window, stride, pad, pad_value)

    expected_y, expected_dx = of_chainer(average, x, dy)
    count = np.prod(window)
    y = device.forward(x, expected_y.shape[2:], kind, window, stride, pad, misaligned=misaligned)
    assert_close(y, expected_y, dtype, accumulated(count + 1, of_chainer(average, np.abs(exact(x)))[0]))

    dx = device.backward(x, y, gradients[0], kind, window, stride, pad, misaligned=misaligned)
    _, magnitude = of_chainer(average, x, lambda _: np.abs(exact(gradients[0])))
    assert_close(dx, expected_dx, dtype, accumulated(count + 1, magnitude))


@dtypes
def test_windows_of_nothing(device, dtype):
    """In the padding altogether, and beyond it."""
    x, windows = np.ones((1, 1, 2, 2), dtype), ((1, 2), (1, 2), (2, 2))
    y = device.forward(x, (7, 3), "max", *windows)
    expected = np.full((7, 3), -np.inf)
    expected[2:4, 1] = 1
    same(y, expected[None, None])
    dx = device.backward(x, y, np.ones_like(y), "max", *windows)
    same(dx, np.array([[1.0, 0], [1, 0]])[None, None])
    same(device.forward(x, (7, 3), "average", *windows), np.where(expected == 1, 1.0, 0)[None, None])
    y = device.forward(x, (7, 3), "average_without_padding", *windows)
    same(y, np.where(expected == 1, 1, np.nan)[None, None])
    for kind in AVERAGES:
        same(device.backward(x, y, np.ones_like(y), kind, *windows), np.full(x.shape, 0.5))


@pytest.mark.parametrize("kind", ["max", *AVERAGES])
@pytest.mark.parametrize("group", [1, 30, 63, 1000])
def test_planes_in_groups(device, monkeypatch, kind, group):
    """Many more elements than 32 bits can number, with a smaller number; groups are not all of one size."""
    rng = np.random.default_rng(group)
    x, windows = arrays(rng, (5, 7, 5, 3), FLOAT32), ((3, 2), (2, 1), (1, 1))
    y = device.forward(x, (3, 4), kind, *windows)
    dy = arrays(rng, y.shape, FLOAT32)
    dx = device.backward(x, y, dy, kind, *windows)
    monkeypatch.setattr(pooling, "_GROUP", group)
    same(device.forward(x, (3, 4), kind, *windows), exact(y))
    same(device.backward(x, y, dy, kind, *windows), exact(dx))


@pytest.mark.parametrize("kind", ["max", *AVERAGES])
def test_a_plane_of_many_blocks_and_a_window_of_all_of_it(device, kind):
    rng = np.random.default_rng(0)
    x = arrays(rng, (2, 3, 33, 61), FLOAT16, mean=1)
    windows = (33, 61), (33, 61), (0, 0)
    y = device.forward(x, (1, 1), kind, *windows)
    expected = exact(x).max((2, 3)) if kind == "max" else exact(x).mean((2, 3))
    bound = 0 if kind == "max" else accumulated(x[0, 0].size + 1, np.abs(exact(x)).mean((2, 3)))[..., None, None]
    assert_close(y, expected[..., None, None], FLOAT16, bound)
    dx = device.backward(x, y, np.ones_like(y), kind, *windows)
    if kind == "max":
        assert (exact(dx).sum((2, 3)) == 1).all()
        assert (exact(x)[exact(dx) == 1] == exact(y).ravel()).all()
    else:
        assert_close(dx, np.full(x.shape, 1 / x[0, 0].size), FLOAT16, accumulated(1, 1 / x[0, 0].size))


def test_each_is_one_launch_and_none_of_nothing(device):
    if device.side.is_gpu:
        pytest.skip("counts launches of the stand-in")
    launches = device.side.cuda.launcher.launches
    windows = (2, 2), (2, 2), (0, 0)
    for images, expected in ((3, 1), (0, 0)):
        x = np.ones((images, 2, 4, 4), np.float16)
        for kind in ("max", *AVERAGES):
            before = len(launches)
            y = device.forward(x, (2, 2), kind, *windows)
            assert len(launches) - before == expected
            assert device.backward(x, y, y, kind, *windows).shape == x.shape
            assert len(launches) - before == 2 * expected


def test_no_windows_at_all_give_no_gradient(device):
    x, y = np.ones((2, 3, 4, 4), np.float16), np.ones((2, 3, 0, 2), np.float16)
    for kind in ("max", *AVERAGES):
        same(device.backward(x, y, y, kind, (5, 2), (5, 2), (0, 0)), np.zeros(x.shape))


def test_a_plane_too_large_to_be_numbered():
    """Not an array that is there: nothing looks at it."""
    poolings = PlanePoolings(OnHost().cuda.launcher, None)
    x = np.broadcast_to(np.float16(0), (1, 1, 2**16, 2**15)).view(DeviceArray)
    y = np.zeros((1, 1, 1, 1), np.float16).view(DeviceArray)
    with pytest.raises(ValueError, match=r"planes of 2147483648 elements: they may have 2\*\*31 - 1"):
        poolings.pool(x, y, "max", (2**16, 2**15), (1, 1), (0, 0))
