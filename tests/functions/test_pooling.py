"""Pooling of variables in NHWC beside Chainer's in NCHW and float64."""

import chainer.functions as CF
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec import functions as F
from tests.cases import tries
from tests.functions.nhwc import DTYPES, EPS32, assert_rounded, normal, run, to_nchw, wide


def _assert_right(mine, chainers, x, terms):
    y, (dx,), dy = run(mine, [x])
    exact, (dx_exact,), _ = run(chainers, [to_nchw(wide(x))], to_nchw(wide(dy)))
    for found, right in ((y, exact), (dx, dx_exact)):
        right = right.transpose(0, 2, 3, 1) if right.ndim == 4 else right
        # The maximum of a window with nothing in it is -inf, as in Chainer.
        np.testing.assert_array_equal(np.isinf(found), np.isinf(right.reshape(found.shape)))
        found, right = (np.where(np.isinf(array), 0, array) for array in (found, right))
        slack = terms * EPS32 * (np.abs(wide(x)).max() + np.abs(wide(dy)).max() * terms)
        assert_rounded(found, right.reshape(found.shape), x.dtype, slack)


@settings(max_examples=tries(40))
@given(
    size=st.tuples(st.integers(3, 8), st.integers(3, 8)),
    ksize=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    cover_all=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_pooling_is_chainers(size, ksize, stride, pad, cover_all, dtype, seed):
    pad = tuple(min(p, k - 1) for p, k in zip(pad, ksize, strict=True))
    x = np.random.RandomState(seed).permutation(2 * size[0] * size[1] * 3).reshape(2, *size, 3)
    x = ((x - 40) / 8).astype(np.float32).astype(dtype)
    taps = ksize[0] * ksize[1]
    arguments = ksize, stride, pad
    if dtype.name != "bfloat16":  # its steps are too coarse for so many different numbers
        _assert_right(
            lambda x: F.max_pooling_2d(x, *arguments, cover_all),
            lambda x: CF.max_pooling_2d(x, *arguments, cover_all),
            x,
            taps,
        )
    _assert_right(
        lambda x: F.average_pooling_2d(x, *arguments), lambda x: CF.average_pooling_2d(x, *arguments), x, taps
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_global_average(dtype):
    x = normal(0, 3, 7, 5, 6, dtype=dtype)
    assert F.global_average_pooling_2d(x).shape == (3, 6)
    _assert_right(F.global_average_pooling_2d, lambda x: CF.mean(x, axis=(2, 3)), x, 35)


def test_defaults_are_chainers():
    x = normal(0, 1, 5, 5, 2)
    assert F.max_pooling_2d(x, 2).shape == (1, 3, 3, 2) == F.max_pooling_2d(x, 3, 2, 1).shape
    assert F.average_pooling_2d(x, 2).shape == (1, 2, 2, 2)


MESSAGES = [
    (
        lambda: F.max_pooling_2d(np.zeros((2, 32, 32, 1), "f"), 16),
        "max_pooling_2d: a window must have at most 255 elements; found (16, 16)",
    ),
    (
        lambda: F.average_pooling_2d(np.zeros((2, 64, 7, 7), "f"), (7, 8)),
        "average_pooling_2d: x (2, 64, 7, 7) with pad (0, 0) is smaller than the window (7, 8); x must be (N, H, W, C)",
    ),
    (
        lambda: F.global_average_pooling_2d(np.zeros((2, 64), "f")),
        "global_average_pooling_2d: x must be (N, H, W, C); found shape (2, 64)",
    ),
]


@pytest.mark.parametrize(("call", "message"), MESSAGES)
def test_messages(call, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert str(caught.value) == message
