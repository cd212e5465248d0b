"""Local response normalization of variables in NHWC beside Chainer's in NCHW and float64."""

import chainer.functions as CF
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec import functions as F
from mixprec.backends.geometry import LocalResponseNorm
from mixprec.functions.local_response_normalization import LocalResponseNormalization
from tests.cases import tries
from tests.functions.nhwc import DTYPES, EPS32, assert_rounded, normal, run, to_nchw, wide


def _assert_right(arguments, x):
    y, (dx,), dy = run(lambda x: F.local_response_normalization(x, *arguments), [x])
    exact, (dx_exact,), _ = run(
        lambda x: CF.local_response_normalization(x, *arguments), [to_nchw(wide(x))], to_nchw(wide(dy))
    )
    for found, right in ((y, exact), (dx, dx_exact)):
        right = right.transpose(0, 2, 3, 1) if right.ndim == 4 else right
        # 30 roundings to float32; terms of a gradient are no larger than the gradient that comes in.
        slack = 30 * EPS32 * (np.abs(wide(x)).max() + 20 * np.abs(wide(dy)).max())
        assert_rounded(found, right, x.dtype, slack)


@settings(max_examples=tries(40))
@given(
    shape=st.sampled_from([(2, 3, 4, 8), (1, 5, 1, 3), (4, 1), (3, 17)]),
    n=st.integers(1, 8),
    k=st.sampled_from([1, 2.0]),
    alpha=st.sampled_from([1e-4, 0.1]),
    beta=st.sampled_from([0.75, 0.5, 1]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_it_is_chainers(shape, n, k, alpha, beta, dtype, seed):
    _assert_right((n, k, alpha, beta), normal(seed, *shape, dtype=dtype))


def test_defaults_are_chainers():
    _assert_right((), 100 * normal(0, 2, 3, 3, 9))


def test_in_the_memory_order_of_nhwc():
    """As convert() uses it: (N, C, H, W) for everybody, (N, H, W, C) in memory, and so the gradient."""
    x = normal(0, 2, 3, 4, 8)
    expected, (dx_expected,), dy = run(lambda x: F.local_response_normalization(x, 5, 1, 0.1), [x])

    def channels_first(x):
        node = LocalResponseNormalization(LocalResponseNorm(5, 1.0, 0.1))
        node.channels_first = True
        return node.apply((x,))[0]

    y, (dx,), _ = run(channels_first, [x.transpose(0, 3, 1, 2)], dy.transpose(0, 3, 1, 2))
    for found, right in ((y, expected), (dx, dx_expected)):
        assert found.transpose(0, 2, 3, 1).flags.c_contiguous
        np.testing.assert_array_equal(found.transpose(0, 2, 3, 1), right)


MESSAGES = [
    ({"n": 0}, "n must be a whole number, 1 or more; found 0"),
    ({"n": 2.5}, "n must be a whole number, 1 or more; found 2.5"),
    ({"k": "2"}, "k must be a finite number; found '2'"),
    ({"alpha": float("nan")}, "alpha must be a finite number; found nan"),
    ({"beta": None}, "beta must be a finite number; found None"),
    ({"x": np.zeros(3, "f")}, "x must be (..., C) with two axes or more; found shape (3,)"),
]


@pytest.mark.parametrize(("arguments", "message"), MESSAGES)
def test_messages(arguments, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        F.local_response_normalization(**{"x": np.zeros((2, 3), "f"), **arguments})
    assert str(caught.value) == f"local_response_normalization: {message}"
