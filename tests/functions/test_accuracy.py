"""The accuracy beside Chainer's."""

import re

import chainer
import chainer.functions as F
import numpy as np
import pytest

from mixprec import functions
from tests.backends.primitive_cases import FLOAT32, STORAGE


def _logits(dtype, seed=0, count=200, number=7):
    """Few different numbers, so that there are ties, and NaN."""
    x = np.random.default_rng(seed).integers(-3, 4, (count, number)).astype(np.float32)
    x[::9, 2:] = np.nan
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("ignore_label", [None, -1, 3])
def test_it_is_chainers(dtype, ignore_label):
    y, t = _logits(dtype), np.random.default_rng(1).integers(-1, 7, 200)
    found = functions.accuracy(chainer.Variable(y), t.astype(np.int32), ignore_label)
    expected = F.accuracy(y.astype(np.float32), t, ignore_label)
    assert (found.shape, found.dtype, found.requires_grad) == ((), FLOAT32, False)
    assert found.array == expected.array
    assert 0 < found.array < 1


@pytest.mark.parametrize("loss", [functions.softmax_cross_entropy, functions.binary_cross_entropy])
@pytest.mark.parametrize(("number", "ignore_label"), [(0, 3), (0, -1), (1, 3)])
def test_that_of_a_loss(loss, number, ignore_label):
    """One of other labels, or that ignores others, has no part in it."""
    y, t = chainer.Variable(_logits(FLOAT32)), [*np.random.default_rng(1).integers(0, 7, (2, 200), np.int32)]
    found = functions.accuracy(y, t[0], 3, loss=loss(y, t[number], ignore_label=ignore_label))
    assert found.array == functions.accuracy(y, t[0], 3).array
    assert found.array != functions.accuracy(y, t[1], 3).array


def test_all_labels_ignored():
    assert functions.accuracy(np.zeros((2, 3), "f"), np.full(2, -1, "i"), -1).array == 0


@pytest.mark.parametrize("top", [1, 2, 6])
def test_the_largest_few(top):
    """Equal ones count as larger, and nothing is below NaN."""
    y, t = _logits(FLOAT32), np.random.default_rng(1).integers(0, 7, 200).astype(np.int32)
    of_label = y[np.arange(200), t][:, None]
    expected = np.mean((~(y < of_label)).sum(1) <= top, dtype=np.float32)
    assert functions.accuracy(y, t, top=top).array == expected


UNFIT = [
    ((np.zeros((2, 3)), np.zeros(2, "i")), {}, "accuracy: y must be float16, bfloat16 or float32; found float64"),
    ((np.zeros((2, 3), "f"), np.zeros(2, "u4")), {}, "accuracy: t must be signed integers; found uint32"),
    ((np.zeros((2, 3), "f"), np.zeros(3, "i")), {}, "accuracy: y must be (N, K) and t (N,); found (2, 3) and (3,)"),
    ((np.zeros((2, 3), "f"), np.zeros(2, "i")), {"top": 0}, "accuracy: top must be"),
    (([1.0], np.zeros(2, "i")), {}, "accuracy: y must be"),
    ((np.zeros((2, 3), "f"), np.zeros(2, "i")), {"loss": 1.0}, "accuracy: loss must be a chainer.Variable; found"),
]


@pytest.mark.parametrize(("arguments", "keywords", "message"), UNFIT)
def test_what_does_not_fit(arguments, keywords, message):
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(message)):
        functions.accuracy(*arguments, **keywords)


@pytest.mark.gpu
def test_labels_of_the_host():
    import cupy

    with pytest.raises(TypeError, match=r"incompatible array types .*\(accuracy\)"):
        functions.accuracy(cupy.zeros((2, 3), np.float32), np.zeros(2, np.int32))
