"""Embeddings of converted models beside Chainer's."""

import chainer
import chainer.functions as F
import chainer.links as L
import ml_dtypes
import numpy as np
import pytest

import mixprec

SMALL = np.random.RandomState(1).randint(-8, 9, (2, 6, 3)).astype("f4")  # exact in any dtype, as are sums of them
LABELS = np.random.RandomState(0).randint(-1, 6, (4, 5))
HOW = [
    {"compute": "float16"},
    {"compute": "bfloat16"},
    {"compute": "float32"},
    {"compute": "float16", "layout": "nchw"},
    {"compute": "float16", "keep_float32": (L.EmbedID,)},
]


class Net(chainer.Chain):
    def __init__(self, ignore_label):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(6, 3, initialW=SMALL[0], ignore_label=ignore_label)

    def forward(self, *labels):
        return F.stack([self.embed(t) for t in labels])


def _run(labels, ignore_label, **how):
    model = Net(ignore_label)
    if how:
        mixprec.convert(model, **how)
    model.cleargrads()
    y = model(*labels)
    y.grad = np.resize(SMALL[1], y.shape).astype(y.dtype)
    y.backward()
    return model.embed.W, y.array


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("ignore_label", [None, -1, 2])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_rows_and_gradients(how, ignore_label, dtype):
    labels = [LABELS.astype(dtype), LABELS[::-1].astype(dtype)]
    (expected, y), (W, found) = _run(labels, ignore_label), _run(labels, ignore_label, **how)
    kept = "keep_float32" in how
    assert (
        W.dtype == W.grad.dtype == ("float32" if kept else np.dtype(getattr(ml_dtypes, how["compute"], how["compute"])))
    )
    np.testing.assert_array_equal(found, y, strict=True)
    np.testing.assert_array_equal(W.grad.astype("f4"), expected.grad)


@pytest.mark.parametrize("how", HOW[:3])
def test_labels_that_are_none(how):
    model = Net(-1)
    mixprec.convert(model, **how)
    with pytest.raises(IndexError):
        model(np.array([6]))
    with chainer.using_config("debug", True), pytest.raises(ValueError, match="`0 <= x < len"):
        model(np.array([-2]))
    with pytest.raises(chainer.utils.type_check.InvalidType):
        model(np.array([1.0], "f4"))
