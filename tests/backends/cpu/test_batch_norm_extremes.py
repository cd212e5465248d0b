"""Batch normalization on NumPy of millions of elements, and of what is extreme: constants, the largest numbers, inf."""

import numpy as np
import pytest

from mixprec.backends.cpu.blocks import BLOCK
from mixprec.backends.geometry import BatchNorm, Saved
from tests.backends import primitive_cases as cases
from tests.cases import pairs

# --- statistics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "mean", "dtype"), [(3, 100, cases.FLOAT16), (1, -1000, cases.FLOAT32), (1, 100, cases.BFLOAT16)]
)
def test_statistics_of_millions_of_elements(primitives, channels, mean, dtype):
    """3.2 million: as many as each channel of ResNet-50's first convolution has at batch 256."""
    rng = np.random.default_rng(0)
    x = cases.arrays(rng, (256 * 112 * 112, channels), dtype, 1, mean)
    expected_mean, expected_variance = x.mean(0, dtype=np.float64), cases.exact(x).var(0)
    running = np.zeros((2, channels), np.float32)
    _, saved = primitives.batch_norm(
        x, np.ones(channels, np.float32), np.zeros(channels, np.float32), tuple(running), BatchNorm(eps=0.0, decay=0.0)
    )
    np.testing.assert_allclose(saved.mean, expected_mean, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(saved.invstd, 1 / np.sqrt(expected_variance), rtol=1e-5)
    np.testing.assert_allclose(running[1], expected_variance, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [cases.FLOAT16, cases.FLOAT32])
def test_gradients_of_millions_of_elements(primitives, dtype):
    """Sums of numbers that do not cancel."""
    rng = np.random.default_rng(0)
    x, dy = cases.arrays(rng, (256 * 112 * 112, 1), dtype, 1, 3), cases.arrays(rng, (256 * 112 * 112, 1), dtype, 0.1, 1)
    gamma, beta, mean, invstd = np.ones((4, 1), np.float32)
    *_, dgamma, dbeta, _ = primitives.batch_norm_backward(dy, x, gamma, beta, Saved(mean, invstd), BatchNorm())
    np.testing.assert_allclose(dbeta, cases.exact(dy).sum(0), rtol=1e-5)
    np.testing.assert_allclose(dgamma, (cases.exact(dy) * (cases.exact(x) - 1)).sum(0), rtol=1e-5)


def test_statistics_of_blocks_that_differ(anywhere):
    """The first block says nothing about the second."""
    x = np.concatenate([np.full(BLOCK, 3e4), np.full(BLOCK, -3e4), np.full(BLOCK, 1e-3)]).astype(np.float16)[:, None]
    x[1::2] += np.float16(0.25)
    _, saved = anywhere.batch_norm(x, np.ones(1, np.float32), np.zeros(1, np.float32), None, BatchNorm())
    np.testing.assert_allclose(saved.mean, cases.exact(x).mean(), atol=3e4 * 1e-5)
    np.testing.assert_allclose(saved.invstd, 1 / np.sqrt(cases.exact(x).var() + 2e-5), rtol=1e-5)


OUTLIERS = pairs([(2048, 16), (128, 256), (32, 512), (300, 40), (8192, 64)], [8, 16, 32, 10**6], [5, 20, 45, 100, 1e4])


@pytest.mark.parametrize(("shape", "width", "outlier"), OUTLIERS)
def test_variances_of_rows_that_begin_with_outliers(primitives, shape, width, outlier):
    """A first row that is far from all others, and all rows at the border of images of some width."""
    x = cases.arrays(np.random.default_rng(0), shape, np.float32)
    x[::width] = outlier
    expected = cases.batch_norm_moments(x, 0, merged=True)
    variance = primitives._moments(x)[1]
    assert (np.abs(variance - expected.variance) <= expected.variance_bound).all()


# --- what is extreme


@pytest.mark.parametrize(
    ("rows", "value", "dtype"), pairs((3000, 1, 2), (0.0, 65504.0, 100.0, -65504.0), cases.STORAGE)
)
def test_a_channel_of_constants(anywhere, value, rows, dtype):
    """It has a variance of 0, and its output is beta, as far as float32 knows ``gamma * mean / sqrt(eps)``."""
    x = np.full((rows, 2), value, dtype)
    gamma, beta = np.array([1, -1], np.float32), np.array([0.5, 0.25], np.float32)
    attributes = BatchNorm(relu=True)
    running = np.zeros(2, np.float32), np.ones(2, np.float32)
    y, saved = anywhere.batch_norm(x, gamma, beta, running, attributes)
    np.testing.assert_array_equal(saved.mean, cases.exact(x)[0])
    np.testing.assert_allclose(saved.invstd, 1 / np.sqrt(2e-5), rtol=1e-6)
    np.testing.assert_allclose(running[1], 0.9, rtol=1e-6)
    cases.assert_close(y, np.broadcast_to(beta, x.shape), dtype, 4 * 2.0**-24 * np.abs(cases.exact(x)) / np.sqrt(2e-5))
    dx, dgamma, dbeta, _ = anywhere.batch_norm_backward(np.ones_like(x), x, gamma, beta, saved, attributes)
    np.testing.assert_array_equal(dgamma, 0)
    assert np.isfinite(dbeta).all()
    assert np.isfinite(cases.exact(dx)).all()


def test_the_largest_numbers_of_float16(by_any_engine):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((5000, 3)) < 0.5, 65504, -65504).astype(np.float16)
    gamma, beta = np.ones(3, np.float32), np.zeros(3, np.float32)
    y, saved = by_any_engine.batch_norm(x, gamma, beta, None, BatchNorm())
    np.testing.assert_allclose(cases.exact(y), np.sign(cases.exact(x)), atol=0.1)
    dx, dgamma, _, _ = by_any_engine.batch_norm_backward(y, x, gamma, beta, saved, BatchNorm())
    assert np.isfinite(cases.exact(dx)).all()
    np.testing.assert_allclose(dgamma, 5000, rtol=0.01)


@pytest.mark.parametrize("dtype", cases.STORAGE)
@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_stays_in_its_channel(anywhere, dtype, value):
    x = np.ones((3000, 2), dtype)
    x[17, 1] = value
    gamma, beta = np.ones((2, 2), np.float32)
    y, saved = anywhere.batch_norm(x, gamma, beta, None, BatchNorm(relu=True))
    assert (y[:, 0] == 1).all()
    assert np.isnan(saved.invstd[1])
    assert np.isnan(cases.exact(y[:, 1])).all()
    dx, dgamma, _, _ = anywhere.batch_norm_backward(np.ones_like(x), x, gamma, beta, saved, BatchNorm(relu=True))
    assert np.isfinite(cases.exact(dx[:, 0])).all()
    assert np.isfinite(dgamma[0])


@pytest.mark.parametrize("dtype", cases.STORAGE)
def test_an_infinite_gradient_ends_at_a_closed_relu(anywhere, dtype):
    x = np.array([[-1], [1]], dtype)
    gamma, beta = np.ones(1, np.float32), np.zeros(1, np.float32)
    attributes = BatchNorm(relu=True)
    for add in (None, np.zeros_like(x)):
        _, saved = anywhere.batch_norm(x, gamma, beta, None, attributes, add=add)
        dy = np.array([[np.inf], [2]], dtype)
        *_, dbeta, dadd = anywhere.batch_norm_backward(dy, x, gamma, beta, saved, attributes, add=add is not None)
        assert dbeta == 2
        assert add is None or dadd.tolist() == [[0], [2]]


def test_overflow_is_infinite(anywhere):
    x = np.array([[0], [1]], np.float16)
    y, _ = anywhere.batch_norm(x, np.full(1, 1e6, np.float32), np.zeros(1, np.float32), None, BatchNorm())
    assert y.tolist() == [[-np.inf], [np.inf]]


def test_an_empty_batch_is_an_error(anywhere):
    parameters = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"empty batch.*\(0, 4, 4, 3\)"):
        anywhere.batch_norm(np.zeros((0, 4, 4, 3), np.float16), *parameters, None, BatchNorm())
    x = np.zeros((0, 4, 4, 3), cases.BFLOAT16)
    assert anywhere.batch_norm_inference(x, *parameters, *parameters, BatchNorm()).shape == x.shape
