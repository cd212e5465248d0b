"""Embeddings of converted models beside Chainer's."""

import chainer
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.base.arguments import storage_dtype

W, DY = np.random.RandomState(1).randint(-8, 9, (2, 6, 3)).astype("f4")  # exact in any dtype, as are sums of them
LABELS = np.random.RandomState(0).randint(-1, 6, (4, 5))
HOW = [
    *[{"compute": compute} for compute in ("float16", "bfloat16", "float32")],
    {"compute": "float16", "layout": "nchw"},
    {"compute": "float16", "keep_float32": (L.EmbedID,)},
]


def _run(labels, ignore_label, **how):
    model = chainer.Sequential(L.EmbedID(6, 3, initialW=W, ignore_label=ignore_label))
    if how:
        mixprec.convert(model, **how)
    model.cleargrads()
    y = model(labels)
    y.grad = np.resize(DY, y.shape).astype(y.dtype)
    y.backward()
    return model[0].W, y.array


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("ignore_label", [None, -1, 2])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_rows_and_gradients(how, ignore_label, dtype):
    (expected, y), (W, found) = [_run(LABELS.astype(dtype), ignore_label, **each) for each in ({}, how)]
    assert W.dtype == W.grad.dtype == storage_dtype("W", "float32" if "keep_float32" in how else how["compute"])
    np.testing.assert_array_equal(found, y, strict=True)
    np.testing.assert_array_equal(W.grad.astype("f4"), expected.grad)


@pytest.mark.parametrize("how", HOW[:3])
def test_labels_that_are_none(how):
    with pytest.raises(IndexError):
        _run(np.array([6]), -1, **how)
    with pytest.raises(chainer.utils.type_check.InvalidType):
        _run(np.array([1.0], "f4"), -1, **how)
    with chainer.using_config("debug", True), pytest.raises(ValueError, match="`0 <= x < len"):
        _run(np.array([-2]), -1, **how)
