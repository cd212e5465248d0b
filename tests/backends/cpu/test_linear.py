"""Linear layers on NumPy beside FP64."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import (
    FLOAT16,
    FLOAT32,
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    channel_counts,
    eps_of,
    exact,
    positions,
    seeds,
    storage_dtypes,
)
from tests.cases import tries

sizes = st.sampled_from([1, 2, 3, 5, 8, 17, 64, 129])


@given(batch=sizes, inputs=sizes, outputs=sizes, dtype=storage_dtypes, bias=st.booleans(), seed=seeds)
@settings(max_examples=tries(100))
def test_linear(anywhere, batch, inputs, outputs, dtype, bias, seed):
    rng = np.random.default_rng(seed)
    x, w, dy = (arrays(rng, shape, dtype) for shape in ((batch, inputs), (outputs, inputs), (batch, outputs)))
    b = arrays(rng, outputs, rng.choice([dtype, FLOAT32])) if bias else None

    variables = [chainer.Variable(exact(v)) for v in (x, w, b) if v is not None]
    expected = F.linear(*variables)
    expected.grad = exact(dy)
    expected.backward()
    terms = np.abs(exact(x)) @ np.abs(exact(w)).T + (np.abs(exact(b)) if bias else 0)
    assert_close(anywhere.linear(x, w, b), expected.array, dtype, accumulated(inputs + 1, terms))
    assert_close(
        anywhere.linear_dgrad(dy, w),
        variables[0].grad,
        dtype,
        accumulated(outputs, np.abs(exact(dy)) @ np.abs(exact(w))),
    )
    assert_close(
        anywhere.linear_wgrad(x, dy),
        variables[1].grad,
        dtype,
        accumulated(batch, np.abs(exact(dy)).T @ np.abs(exact(x))),
    )
    if bias:
        found = anywhere.bias_grad(dy, b.dtype)
        assert_close(found, variables[2].grad, b.dtype, accumulated(batch, np.abs(exact(dy)).sum(0)))


@given(position=positions, channels=channel_counts, dtype=storage_dtypes, of_bias=storage_dtypes, seed=seeds)
@settings(max_examples=tries(60))
def test_bias_of_images(on_both, position, channels, dtype, of_bias, seed):
    rng = np.random.default_rng(seed)
    x, b = arrays(rng, (*position, channels), dtype), arrays(rng, channels, of_bias)
    y = on_both.add_bias(x, b)
    assert_close(y, exact(x) + exact(b), dtype, accumulated(1, np.abs(exact(x)) + np.abs(exact(b))))
    found = on_both.bias_grad(x, of_bias)
    axes = (0, 1, 2)
    assert_close(found, exact(x).sum(axes), of_bias, accumulated(x.size // channels, np.abs(exact(x)).sum(axes)))


@pytest.mark.parametrize("dtype", STORAGE)
def test_sums_are_rounded_once(dtype):
    """1 + eps + eps..., each of which a sum in the storage dtype would lose; far more of them for float16."""
    count = 512
    small = eps_of(dtype) / 2 if dtype != FLOAT32 else eps_of(dtype) * 2
    x = np.full((1, count), small, np.float32).astype(dtype)
    x[0, 0] = 1
    w = np.ones((1, count), dtype)
    expected = np.array([[1 + small * (count - 1)]])
    assert_close(PRIMITIVES.linear(x, w), expected, dtype, accumulated(count, expected))
    found = PRIMITIVES.bias_grad(x.T.copy(), dtype)
    assert_close(found, expected[0], dtype, accumulated(count, expected[0]))


def test_sum_of_millions():
    """Beyond what float16 holds, and as exact as a sum in float32 of all would not be."""
    dy = np.full((3_211_264, 1), 0.1, np.float16)
    np.testing.assert_allclose(PRIMITIVES.bias_grad(dy, np.float32), exact(dy).sum(), rtol=1e-6)
    assert PRIMITIVES.bias_grad(dy, FLOAT16) == np.inf


@pytest.mark.filterwarnings("error")
def test_overflow_is_infinite(on_both):
    x = np.full((2, 3), 300, np.float16)
    assert (on_both.linear(x, x) == np.inf).all()
    assert (on_both.linear(x, -x) == -np.inf).all()
    assert (on_both.add_bias(x * 200, np.full(3, 1e5, np.float32)) == np.inf).all()
    x[0, 0] = np.inf
    assert np.isnan(on_both.linear(x, -x)[0, 0]) or on_both.linear(x, -x)[0, 0] == -np.inf


def test_an_empty_batch():
    x, w = np.zeros((0, 3), np.float16), np.ones((2, 3), np.float16)
    y = PRIMITIVES.linear(x, w, np.ones(2, np.float16))
    assert y.shape == (0, 2)
    assert PRIMITIVES.linear_dgrad(y, w).shape == (0, 3)
    assert PRIMITIVES.linear_wgrad(x, y).tolist() == [[0, 0, 0]] * 2
    assert PRIMITIVES.bias_grad(y, np.float32).tolist() == [0, 0]
    assert PRIMITIVES.add_bias(x, np.ones(3, np.float32)).shape == (0, 3)
