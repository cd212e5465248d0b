"""Addition on NumPy: in float32, rounded once."""

import numpy as np
import pytest

from mixprec.backends.geometry import BatchNorm
from tests.backends.primitive_cases import STORAGE, arrays


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_a_sum_is_rounded_once(anywhere, dtype):
    rng = np.random.default_rng(0)
    a, b = arrays(rng, (3, 4, 5), dtype), arrays(rng, (3, 4, 5), dtype, 100.0)
    found = anywhere.add(a, b)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, (a.astype(np.float32) + b.astype(np.float32)).astype(dtype))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_what_does_not_fit_is_inf_without_a_warning(anywhere, dtype):
    largest = {"float16": 65504.0}.get(np.dtype(dtype).name, 3.38e38)
    a = np.array([largest, np.inf, np.inf, -np.inf, np.nan, 0.0], dtype)
    b = np.array([largest, 1, -np.inf, -np.inf, 1, -0.0], dtype)
    found = anywhere.add(a, b).astype(np.float64)
    np.testing.assert_array_equal(found, [np.inf, np.inf, np.nan, -np.inf, np.nan, 0.0])


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_a_batch_normalization_of_two_terms_computes_the_bits_of_that_of_their_sum(by_any_engine, dtype, relu, add):
    rng = np.random.default_rng(1)
    x, other, dy, plus = (arrays(rng, (4, 3, 3, 8), dtype) for _ in range(4))
    gamma, beta = (arrays(rng, (8,), np.float32) for _ in range(2))
    attributes = BatchNorm(relu=relu)
    _, saved = by_any_engine.batch_norm(x, gamma, beta, None, attributes, add=other if add else None)
    rest = x, gamma, beta, saved, attributes
    found = by_any_engine.batch_norm_backward(dy, *rest, add=add, plus=plus)
    expected = by_any_engine.batch_norm_backward(by_any_engine.add(dy, plus), *rest, add=add)
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            np.testing.assert_array_equal(one, other)
