"""Interpolation and the counterparts of poolings, against Chainer and against FP64."""

import chainer
import chainer.functions as CF
import numpy as np
import pytest

from mixprec.backends.geometry import Pooling
from mixprec.functions.resizing import ResizeImages, Unpooling2D, Upsampling2D
from tests.cases import in_turn
from tests.functions.nhwc import DTYPES, normal

SHAPE = (2, 5, 4, 8)
WHERE = np.random.RandomState(0).randint(0, 9, SHAPE, np.uint8)
# name: (node, Chainer's function of images (N, C, H, W))
FUNCTIONS = {
    f"resize {size} {mode} {align_corners}": (
        lambda size=size, how=(mode, align_corners): ResizeImages(size, *how),
        lambda x, size=size, how={"mode": mode, "align_corners": align_corners}: CF.resize_images(x, size, **how),
    )
    for size in ((9, 3), (5, 4), (1, 7))
    for mode in ("bilinear", "nearest")
    for align_corners in (True, False)
} | {
    "unpooling": (
        lambda: Unpooling2D((9, 12), Pooling((2, 3), (2, 3), (0, 0), True)),
        lambda x: CF.unpooling_2d(x, (2, 3), outsize=(9, 12)),
    ),
    "upsampling": (
        lambda: Upsampling2D((9, 7), Pooling((3, 3), (2, 2), (1, 1)), WHERE),
        lambda x: CF.upsampling_2d(x, WHERE.transpose(0, 3, 1, 2).astype(int), 3, 2, 1, (9, 7), cover_all=False),
    ),
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(FUNCTIONS, DTYPES))
def test_results_are_chainers_and_gradients_those_of_a_linear_function(name, dtype):
    """Such a function is linear: <dy, f(x)> = <df(dy), x>, here in FP64, with one rounding each."""
    node, function = FUNCTIONS[name]
    x = chainer.Variable(normal(0, *SHAPE, dtype=dtype))
    (y,) = node().apply((x,))
    expected = function(x.array.astype("f").transpose(0, 3, 1, 2)).array.transpose(0, 2, 3, 1)
    eps = max(np.finfo(np.float32).eps * 4, {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(np.dtype(dtype).name, 0))
    assert y.dtype == dtype
    np.testing.assert_allclose(y.array.astype("d"), expected, rtol=eps, atol=eps)
    y.grad = dy = normal(1, *y.shape, dtype=dtype)
    y.backward()
    terms = dy.astype("d") * expected, x.grad.astype("d") * x.array.astype("d")
    assert abs(terms[0].sum() - terms[1].sum()) <= 2 * eps * np.abs(terms[1]).sum()
