"""Local response normalization on NumPy beside its formula in FP64, and that beside Chainer's."""

import numpy as np
import pytest
from hypothesis import given, settings

from mixprec.backends.geometry import LocalResponseNorm
from tests.backends import primitive_cases as cases
from tests.cases import tries

STRONG = LocalResponseNorm(n=5, k=1.0, alpha=0.5, beta=0.75)


def check(primitives, x, dy, attributes):
    """Asserts that both passes are right, and returns what they gave."""
    found = primitives.local_response_norm(x, attributes), primitives.local_response_norm_backward(dy, x, attributes)
    for array, (expected, bound) in zip(found, cases.local_response_norm(x, dy, attributes), strict=True):
        cases.assert_close(array, expected, x.dtype, bound)
    return found


@given(
    position=cases.positions,
    channels=cases.channel_counts,
    dtype=cases.storage_dtypes,
    attributes=cases.local_response_norms,
    seed=cases.seeds,
)
@settings(max_examples=tries(120))
def test_local_response_norm(on_both, position, channels, dtype, attributes, seed):
    rng = np.random.default_rng(seed)
    x, dy = cases.arrays(rng, (2, *position, channels), dtype, 3)
    check(on_both, x, dy, attributes)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(cases.FLOAT16, 6000), (cases.BFLOAT16, 1e12), (cases.FLOAT32, 1e12)], ids=str
)
@pytest.mark.parametrize("beta", [0.75, 0.5])
def test_large_numbers(on_both, dtype, scale, beta):
    """Squares that the storage dtype does not hold are fine."""
    rng = np.random.default_rng(0)
    x = cases.arrays(rng, (5, 7, 24), dtype, scale)
    y, dx = check(on_both, x, cases.arrays(rng, x.shape, dtype, scale), LocalResponseNorm(beta=beta))
    assert np.isfinite(cases.exact(y)).all()
    assert np.isfinite(cases.exact(dx)).all()


@pytest.mark.parametrize("dtype", [cases.BFLOAT16, cases.FLOAT32], ids=str)
def test_squares_beyond_float32_give_zeros(on_both, dtype):
    x = np.ones((3, 12), dtype)
    x[1, 4] = 1e30
    y = on_both.local_response_norm(x, STRONG)
    reached = np.zeros(x.shape, bool)
    reached[1, 2:7] = True
    np.testing.assert_array_equal(cases.exact(y) == 0, reached)
    dx = on_both.local_response_norm_backward(np.ones_like(x), x, STRONG)
    for found, (expected, bound) in zip((y, dx), cases.local_response_norm(x, np.ones_like(x), STRONG), strict=True):
        cases.assert_close(found, expected, dtype, bound + 1e-14)  # what 0 is in place of


@pytest.mark.parametrize("dtype", cases.STORAGE, ids=str)
@pytest.mark.parametrize("beta", [0.75, 0.5])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_own_row_and_only_as_far_as_windows_reach(on_both, dtype, beta, bad):
    attributes = LocalResponseNorm(5, 1.0, 0.5, beta)
    rng = np.random.default_rng(0)
    x, dy = cases.arrays(rng, (2, 4, 12), dtype)
    good, good_dx = check(on_both, x, dy, attributes)
    x[2, 11] = bad
    y = on_both.local_response_norm(x, attributes)
    dx = on_both.local_response_norm_backward(dy, x, attributes)
    distance = np.where(np.arange(4)[:, None] == 2, 11 - np.arange(12), 12)
    np.testing.assert_array_equal(y[distance > 2], good[distance > 2])
    np.testing.assert_array_equal(dx[distance > 4], good_dx[distance > 4])
    spoiled = distance == 0 if bad == np.inf else distance <= 2
    np.testing.assert_array_equal(np.isnan(cases.exact(y)), spoiled)
    assert np.isnan(cases.exact(dx)[spoiled]).all()


def test_a_base_of_zero_is_not_a_number_as_in_chainer(on_both):
    x = np.array([[0, 0, 0, 3]], np.float32)
    attributes = LocalResponseNorm(3, 0.0, 1.0, 0.75)
    expected = [np.nan, np.nan, 0, 3 / 9**0.75]
    np.testing.assert_allclose(on_both.local_response_norm(x, attributes)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", cases.STORAGE, ids=str)
@pytest.mark.parametrize("shape", [(9000, 3), pytest.param((5, 3, 40_000), marks=pytest.mark.slow), (5000, 1)])
def test_many_blocks(on_both, dtype, shape):
    """Of many rows, of one that is longer than a block, and a last block that is smaller."""
    rng = np.random.default_rng(0)
    x, dy = cases.arrays(rng, (2, *shape), dtype)
    found = on_both.local_response_norm(x, STRONG), on_both.local_response_norm_backward(dy, x, STRONG)
    for start in range(0, shape[-1], 1000):
        # Elements further away than two windows reach do not matter.
        part = slice(max(start - 4, 0), start + 1004)
        inner = slice(start - part.start, min(start + 1000, shape[-1]) - part.start)
        expected = cases.local_response_norm(x[..., part], dy[..., part], STRONG)
        for array, (values, bound) in zip(found, expected, strict=True):
            cases.assert_close(array[..., part][..., inner], values[..., inner], dtype, bound[..., inner])


@pytest.mark.parametrize("shape", [(0, 4, 4, 3), (3, 0)])
def test_nothing(on_both, shape):
    x = np.zeros(shape, np.float16)
    y, dx = check(on_both, x, x, LocalResponseNorm())
    assert y.shape == dx.shape == shape
