"""ReLU on NumPy: exact, bit for bit, in every storage dtype."""

import numpy as np
import pytest

from tests.backends.primitive_cases import STORAGE, arrays, exact, tiny_of


def _same(found, expected, dtype):
    assert found.dtype == dtype
    np.testing.assert_array_equal(exact(found), expected)
    np.testing.assert_array_equal(np.signbit(exact(found)), np.signbit(expected))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_relu_keeps_what_is_above_zero_and_nan(anywhere, dtype):
    tiny = 2 * tiny_of(dtype)
    x = np.array([1, tiny, -tiny, 0, -0.0, -1, np.inf, -np.inf, np.nan], dtype)
    _same(anywhere.relu(x), [1, tiny, 0, 0, 0, 0, np.inf, 0, np.nan], dtype)
    x = arrays(np.random.default_rng(0), (3, 4, 5), dtype)
    _same(anywhere.relu(x), np.maximum(exact(x), 0), dtype)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_relu_backward_is_the_gradient_where_the_output_is_above_zero(anywhere, dtype):
    tiny = 2 * tiny_of(dtype)
    y = np.array([1, tiny, 0, -0.0, -1, np.inf, -np.inf, np.nan], dtype)
    dy = np.array([3, -0.0, 5, 5, np.nan, -7, np.inf, 5], dtype)
    dx = anywhere.relu_backward(dy, y)
    assert dx.dtype == dtype
    expected = [3, -0.0, 0, 0, 0, -7, 0, 0]
    np.testing.assert_array_equal(exact(dx), expected)
    np.testing.assert_array_equal(np.signbit(exact(dx)), np.signbit(expected))
