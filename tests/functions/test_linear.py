"""Fully connected layers of variables beside Chainer's in float64."""

import chainer.functions as CF
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec import functions as F
from tests.cases import tries
from tests.functions.nhwc import DTYPES, EPS32, assert_rounded, normal, run, to_nchw, wide


def _assert_right(arrays, **rest):
    y, gradients, dy = run(lambda *inputs: F.linear(*inputs, **rest), arrays)
    exact, magnitude = (
        run(lambda *inputs: CF.linear(*inputs, **rest), [to_nchw(of(wide(a))) for a in arrays], of(wide(dy)))
        for of in (np.array, np.abs)
    )
    terms = max(array.size for array in (*arrays, dy))
    for found, right, size in zip([y, *gradients], [exact[0], *exact[1]], [magnitude[0], *magnitude[1]], strict=True):
        if found.ndim == 4 and found.shape != right.shape:
            right, size = right.transpose(0, 2, 3, 1), size.transpose(0, 2, 3, 1)
        assert_rounded(found, right, arrays[0].dtype, terms * EPS32 * size)


@settings(max_examples=tries(30))
@given(
    b=st.integers(1, 6),
    c=st.integers(1, 40),
    k=st.integers(1, 6),
    bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_linear_is_chainers(b, c, k, bias, dtype, seed):
    arrays = [normal(seed, b, c, dtype=dtype), normal(seed + 1, k, c, dtype=dtype), normal(seed + 2, k, dtype=dtype)]
    _assert_right(arrays if bias else arrays[:2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(4, 3), (1, 1)])
def test_images_are_flattened_in_the_order_of_chainer(size, dtype):
    n = size[0] * size[1] * 5
    _assert_right([normal(0, 2, *size, 5, dtype=dtype), normal(1, 6, n, dtype=dtype), normal(2, 6, dtype=dtype)])


def test_batch_axes():
    _assert_right([normal(0, 2, 3, 5), normal(1, 4, 5)], n_batch_axes=2)
    _assert_right([normal(0, 2, 3, 5), normal(1, 4, 15)])
    x, W = normal(0, 2, 3, 4, 5), normal(1, 6, 5)
    np.testing.assert_allclose(F.linear(x, W, n_batch_axes=3).array, x @ W.T, rtol=1e-5, atol=1e-5)


MESSAGES = [
    (
        lambda: F.linear(np.zeros((2, 5), "f"), np.zeros((4, 6), "f")),
        ValueError,
        "linear: x (B, C) and W (K, C) do not fit; found shapes (2, 5) and (4, 6)",
    ),
    (
        lambda: F.linear(np.zeros((2, 5), "f"), np.zeros((4, 5), "f"), n_batch_axes=2),
        ValueError,
        "linear: n_batch_axes must be from 1 to 1; found 2",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
