"""Poolings on NumPy beside Chainer's in FP64."""

import math

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.geometry import Pooling
from tests.backends import primitive_cases as cases
from tests.cases import tries


def nchw(x):
    return chainer.Variable(cases.exact(x).transpose(0, 3, 1, 2).copy())


def nhwc(x):
    return x.transpose(0, 2, 3, 1)


def gradient(y, dy):
    """Sets the gradient of a variable (N, C, OH, OW) and goes back from it."""
    y.grad = cases.exact(dy).transpose(0, 3, 1, 2).copy()
    y.backward()


def windows(x, pooling):
    """Yields the place of each output, and its window in the order of its rows, padding as -inf."""
    (ph, pw), (r, s), (sh, sw) = pooling.pad, pooling.window, pooling.stride
    oh, ow = pooling.out_size(x.shape[1:3])
    padded = np.pad(cases.exact(x), ((0, 0), (ph, ph + r + sh), (pw, pw + s + sw), (0, 0)), constant_values=-np.inf)
    for i in range(oh):
        for j in range(ow):
            window = padded[:, i * sh : i * sh + r, j * sw : j * sw + s]
            yield (slice(None), i, j), window.reshape(len(x), r * s, -1)


# --- maximum


@given(case=cases.poolings(), dtype=cases.storage_dtypes, ties=st.booleans(), seed=cases.seeds)
@settings(max_examples=tries(120))
def test_max_pool(primitives, case, dtype, ties, seed):
    """The outputs are elements of the input: nothing is rounded."""
    pooling, shape = case
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, shape).astype(dtype) if ties else cases.arrays(rng, shape, dtype)
    y, where = primitives.max_pool(x, pooling)

    def of_chainer(variable):
        return F.max_pooling_2d(variable, pooling.window, pooling.stride, pooling.pad, pooling.cover_all)

    variable = nchw(x)
    expected = of_chainer(variable)
    assert y.dtype == dtype
    np.testing.assert_array_equal(cases.exact(y), nhwc(expected.array))
    assert where.dtype == np.uint8
    for place, window in windows(x, pooling):
        np.testing.assert_array_equal(where[place], window.argmax(1))

    dy = cases.arrays(rng, y.shape, dtype)
    dx = primitives.max_pool_backward(dy, where, pooling, shape)
    gradient(expected, dy)
    magnitude = nchw(x)
    gradient(of_chainer(magnitude), np.abs(cases.exact(dy)))
    cases.assert_close(
        dx, nhwc(variable.grad), dtype, cases.accumulated(math.prod(pooling.window), nhwc(magnitude.grad))
    )


@pytest.mark.parametrize("dtype", cases.STORAGE)
def test_maxima_of_what_is_extreme(anywhere, dtype):
    """Infinities, both zeros, NaN of both signs, the largest and the smallest numbers, each against each."""
    info = np.array([np.inf, -np.inf, 0.0, -0.0, np.nan, -np.nan, 1, -1], np.float32)
    bits = np.dtype(f"u{dtype.itemsize}")
    ones = np.array([1], bits)
    smallest = ones.view(dtype).astype(np.float32)
    largest = (np.array(np.inf, dtype).reshape(1).view(bits) - ones).view(dtype).astype(np.float32)
    values = np.concatenate([info, smallest, -smallest, largest, -largest]).astype(dtype)
    pairs = np.stack(np.meshgrid(values.astype(np.float32), values.astype(np.float32)), -1).astype(dtype)
    x = np.ascontiguousarray(pairs.reshape(1, 1, -1, 1))
    y, where = anywhere.max_pool(x, Pooling((1, 2), (1, 2)))
    expected = pairs.reshape(-1, 2).astype(np.float32)
    index = expected.argmax(1)  # NaN is the largest, the first of equals wins
    np.testing.assert_array_equal(where.reshape(-1), index)
    np.testing.assert_array_equal(
        y.reshape(-1).astype(np.float32), np.take_along_axis(expected, index[:, None], 1)[:, 0]
    )


def test_every_number_of_float16_is_its_own_maximum(primitives):
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(1, 256, 256, 1)
    y, _ = primitives.max_pool(x, Pooling((1, 1), (1, 1)))
    np.testing.assert_array_equal(y, x)


def test_windows_outside_the_input_are_minus_infinity_and_pass_nothing_back(anywhere):
    x = np.array([-3.0], np.float16).reshape(1, 1, 1, 1)
    pooling = Pooling((1, 1), (1, 1), (1, 1))
    y, where = anywhere.max_pool(x, pooling)
    assert y[0, :, :, 0].tolist() == [[-np.inf] * 3, [-np.inf, -3, -np.inf], [-np.inf] * 3]
    assert anywhere.max_pool_backward(np.ones_like(y), where, pooling, x.shape).item() == 1


@pytest.mark.parametrize("dtype", cases.STORAGE)
def test_sums_of_overlapping_windows_are_rounded_once(primitives, dtype):
    """1 + eps/2 + eps/2 is 1 + eps, not 1."""
    x = np.array([0, 1, 0], dtype).reshape(1, 1, 3, 1)
    pooling = Pooling((1, 3), (1, 1), (0, 1))
    y, where = primitives.max_pool(x, pooling)
    half = {2: 2.0**-11 if dtype == cases.FLOAT16 else 2.0**-8, 4: 2.0**-20}[dtype.itemsize]
    dy = np.array([1, half, half], dtype).reshape(y.shape)
    assert primitives.max_pool_backward(dy, where, pooling, x.shape)[0, 0, 1, 0] == 1 + 2 * half


def test_what_is_infinite_goes_only_to_the_maximum(anywhere):
    x = np.array([1, 2], np.float16).reshape(1, 1, 2, 1)
    y, where = anywhere.max_pool(x, Pooling((1, 2), (1, 1)))
    dx = anywhere.max_pool_backward(np.full_like(y, np.inf), where, Pooling((1, 2), (1, 1)), x.shape)
    assert dx.reshape(-1).tolist() == [0, np.inf]


# --- mean


@given(case=cases.poolings(average=True), dtype=cases.storage_dtypes, seed=cases.seeds)
@settings(max_examples=tries(100))
def test_average_pool(anywhere, case, dtype, seed):
    pooling, shape = case
    rng = np.random.default_rng(seed)
    x = cases.arrays(rng, shape, dtype)
    variable, magnitude = nchw(x), nchw(np.abs(cases.exact(x)))
    expected, terms = (
        F.average_pooling_2d(v, pooling.window, pooling.stride, pooling.pad) for v in (variable, magnitude)
    )
    size = math.prod(pooling.window)
    y = anywhere.average_pool(x, pooling)
    cases.assert_close(y, nhwc(expected.array), dtype, cases.accumulated(size, nhwc(terms.array)))

    dy = cases.arrays(rng, y.shape, dtype)
    dx = anywhere.average_pool_backward(dy, pooling, shape)
    gradient(expected, dy)
    gradient(terms, np.abs(cases.exact(dy)))
    cases.assert_close(dx, nhwc(variable.grad), dtype, cases.accumulated(size, nhwc(magnitude.grad)))


@given(position=cases.positions, channels=cases.channel_counts, dtype=cases.storage_dtypes, seed=cases.seeds)
@settings(max_examples=tries(60))
def test_global_average_pool(anywhere, position, channels, dtype, seed):
    rng = np.random.default_rng(seed)
    shape = (*position, channels)
    x = cases.arrays(rng, shape, dtype, 1, 1)
    y = anywhere.global_average_pool(x)
    size = position[1] * position[2]
    cases.assert_close(
        y, cases.exact(x).mean((1, 2)), dtype, cases.accumulated(size, np.abs(cases.exact(x)).mean((1, 2)))
    )

    dy = cases.arrays(rng, y.shape, dtype)
    dx = anywhere.global_average_pool_backward(dy, shape)
    expected = np.broadcast_to(cases.exact(dy)[:, None, None] / size, shape)
    cases.assert_close(dx, expected, dtype, cases.EPS32 * np.abs(expected))


@pytest.mark.parametrize("size", [128, 129, 1 << 16, 1 << 20])
def test_means_of_large_images_are_those_of_small_ones(primitives, size):
    """Errors do not grow with the number of pixels."""
    x = cases.arrays(np.random.default_rng(0), (1, size, 1, 3), cases.FLOAT32, 1, 1)
    bound = cases.accumulated(16, np.abs(cases.exact(x)).mean((1, 2)))
    cases.assert_close(primitives.global_average_pool(x), cases.exact(x).mean((1, 2)), cases.FLOAT32, bound)


@pytest.mark.parametrize("dtype", cases.STORAGE)
def test_means_of_large_numbers_do_not_overflow(anywhere, dtype):
    x = np.full((2, 20, 20, 3), 60000, dtype)
    value = x.flat[0]
    assert (anywhere.global_average_pool(x) == value).all()
    assert (anywhere.average_pool(x, Pooling((20, 20), (1, 1))) == value).all()


@pytest.mark.parametrize("shape", [(40, 20, 20, 8), (2, 200, 200, 3), (3, 1, 1, 40_000)])
@pytest.mark.parametrize("dtype", [cases.FLOAT16])
def test_images_in_parts(primitives, shape, dtype):
    """Some images to a block, or one that is larger than a block."""
    rng = np.random.default_rng(0)
    x = cases.arrays(rng, shape, dtype)
    pooling = Pooling((1, 1), (1, 1))
    y, where = primitives.max_pool(x, pooling)
    for found in (
        y,
        primitives.max_pool_backward(x, where, pooling, shape),
        primitives.average_pool(x, pooling),
        primitives.average_pool_backward(x, pooling, shape),
    ):
        np.testing.assert_array_equal(found, x)
    terms = np.abs(cases.exact(x)).mean((1, 2))
    bound = cases.accumulated(shape[1] * shape[2], terms)
    cases.assert_close(primitives.global_average_pool(x), cases.exact(x).mean((1, 2)), dtype, bound)


def test_an_empty_batch(anywhere):
    pooling = Pooling((2, 2), (2, 2))
    x = np.zeros((0, 4, 4, 3), np.float16)
    y, where = anywhere.max_pool(x, pooling)
    assert y.shape == where.shape == anywhere.average_pool(x, pooling).shape == (0, 2, 2, 3)
    assert anywhere.max_pool_backward(y, where, pooling, x.shape).shape == x.shape
    assert anywhere.average_pool_backward(y, pooling, x.shape).shape == x.shape
    assert anywhere.global_average_pool(x).shape == (0, 3)
    assert anywhere.global_average_pool_backward(np.zeros((0, 3), np.float16), x.shape).shape == x.shape
