"""Float16 on NumPy: FP32 arithmetic and one rounding, in Chainer's own function nodes."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.functions import widening
from tests.cases import tries

EPS16 = 2.0**-11
EPS32 = 2.0**-24

widening.install()


def _half(random, *shape):
    return random.normal(size=shape).astype(np.float16)


def _assert_rounded_once(found, exact, magnitude, terms):
    """``found`` is float16 and within one rounding to FP16 plus FP32 accumulation of the FP64 result.

    Args:
        magnitude: sum of the absolute values of the summed products, in FP64.
        terms: number of them.
    """
    assert found.dtype == np.float16
    bound = EPS16 * np.abs(exact) + 2.0**-25 + terms * EPS32 * magnitude
    assert (np.abs(found.astype(np.float64) - exact) <= bound).all()


CONVOLUTIONS = (
    {"n": st.integers(1, 3), "c": st.integers(1, 5), "k": st.integers(1, 5), "size": st.integers(5, 9)}
    | {"ksize": st.sampled_from([1, 3, 5]), "stride": st.integers(1, 3), "dilate": st.integers(1, 2)}
    | {"groups": st.integers(1, 2), "seed": st.integers(0, 1000)}
)


@settings(max_examples=tries(40))
@given(**CONVOLUTIONS)
def test_convolution_and_its_gradients_round_once(n, c, k, size, ksize, stride, dilate, groups, seed):
    random = np.random.RandomState(seed)
    arrays = [_half(random, n, c * groups, size, size + 1), _half(random, k * groups, c, ksize, ksize)]
    arguments = {"stride": stride, "pad": ksize, "dilate": dilate, "groups": groups}

    def run(x, w, gy):
        x, w = chainer.Variable(x), chainer.Variable(w)
        y = F.convolution_2d(x, w, **arguments)
        y.grad = gy if gy is not None else np.ones_like(y.array)
        y.backward()
        return y.array, x.grad, w.grad

    shape = run(*arrays, None)[0].shape
    arrays.append(_half(random, *shape))
    found = run(*arrays)
    exact = run(*(array.astype(np.float64) for array in arrays))
    magnitude = run(*(np.abs(array.astype(np.float64)) for array in arrays))
    terms = (c * ksize**2, k * ksize**2, n * shape[2] * shape[3])
    for result in zip(found, exact, magnitude, terms, strict=True):
        _assert_rounded_once(*result)


@settings(max_examples=tries(25))
@given(n=st.integers(1, 9), c=st.integers(1, 2000), k=st.integers(1, 9), seed=st.integers(0, 1000))
def test_linear_rounds_once(n, c, k, seed):
    random = np.random.RandomState(seed)
    x, w, b = _half(random, n, c), _half(random, k, c), _half(random, k)
    wide = [array.astype(np.float64) for array in (x, w, b)]
    exact = wide[0] @ wide[1].T + wide[2]
    magnitude = np.abs(wide[0]) @ np.abs(wide[1]).T + np.abs(wide[2])
    _assert_rounded_once(F.linear(x, w, b).array, exact, magnitude, c + 1)


def test_a_long_sum_does_not_lose_its_small_terms():
    """100,000 ones: FP16 addition stops at 2,048; the mean of many equal values is that value."""
    ones = np.ones((1, 100_000), np.float16)
    assert F.linear(ones, np.full((1, 100_000), 2.0**-4, np.float16)).array == 6250
    images = np.full((2, 1, 300, 300), 1.1, np.float16)
    assert (F.average_pooling_2d(images, 300).array == np.float16(1.1)).all()


@pytest.mark.parametrize("train", [True, False])
def test_batch_normalization_with_fp32_parameters(train):
    random = np.random.RandomState(0)
    x = (random.normal(size=(16, 4, 9, 9)) * 2 + 3).astype(np.float16)
    gamma, beta = random.normal(size=(2, 4)).astype(np.float32)
    mean, var = random.normal(size=4).astype(np.float32), random.uniform(1, 2, 4).astype(np.float32)
    gy = _half(random, *x.shape)

    def run(dtype, like):
        variables = [chainer.Variable(x.astype(dtype))] + [chainer.Variable(a.astype(like)) for a in (gamma, beta)]
        statistics = mean.astype(like), var.astype(like)
        if train:
            y = F.batch_normalization(*variables, running_mean=statistics[0], running_var=statistics[1])
        else:
            y = F.fixed_batch_normalization(*variables, *statistics)
        y.grad = gy.astype(dtype)
        y.backward()
        return [y.array, *(variable.grad for variable in variables), *statistics]

    found, exact = run(np.float16, np.float32), run(np.float64, np.float64)
    assert [array.dtype for array in found] == [np.float16, np.float16] + [np.float32] * 4
    for i, (array, reference) in enumerate(zip(found, exact, strict=True)):
        # x has 1,296 elements a channel; a factor of 8 for the handful of FP32 operations on each
        relative = (EPS16 if i < 2 else 0) + 8 * 1296 * EPS32
        assert np.abs(array - reference).max() <= relative * np.abs(reference).max(), i


def test_pooling_and_relu_are_exact():
    """A maximum is one of its inputs; widening must not change a bit, nor lose a NaN."""
    random = np.random.RandomState(0)
    x = _half(random, 2, 3, 8, 8)
    windows = x.reshape(2, 3, 4, 2, 4, 2)
    np.testing.assert_array_equal(F.max_pooling_2d(x, 2).array, windows.max(axis=(3, 5)), strict=True)
    np.testing.assert_array_equal(F.relu(x).array, np.maximum(x, np.float16(0)), strict=True)
    assert np.isnan(F.relu(np.array([np.nan, -np.nan], np.float16)).array).all()


def test_overflow_becomes_inf_without_a_warning():
    big = np.full((1, 1000), 100, np.float16)
    assert np.isposinf(F.linear(big, big).array).all()
