"""The share of labels that logits predict, for which the host reads nothing."""

import chainer
import numpy as np
from chainer import utils

from mixprec.backends import primitives_of
from mixprec.functions import checks
from mixprec.functions.node import dense

NAME = "accuracy"


def accuracy(y, t, ignore_label=None, *, top=None):
    """Computes what :func:`chainer.functions.accuracy` does, in one launch on a GPU. It has no gradient.

    Args:
        y: logits (N, K) in a storage dtype, variable or array.
        t: integer labels (N,) in the range of int32, variable or array. One that is no class is predicted by nothing.
        ignore_label: a label that does not count, or ``None``.
        top: ``None``: the label's logit has to be the largest, the first one among equals, as an argmax has it, NaN
            being larger than all numbers. A number: it has to be among so many largest ones, where those that are
            equal to it count as larger, and so do NaN.

    Returns:
        Variable (), float32; 0 if no label counts.

    Raises:
        TypeError: a dtype does not fit, or one array is on the host and the other one is not.
        ValueError: a shape or an option does not fit.
    """
    y, t = (chainer.as_array(checks.variable(NAME, name, x)) for name, x in (("y", y), ("t", t)))
    checks.dtype(NAME, "y", y)
    if t.dtype.kind != "i":
        raise TypeError(f"{NAME}: t must be signed integers; found {t.dtype}")
    if y.ndim != 2 or t.shape != y.shape[:1]:
        raise ValueError(f"{NAME}: y must be (N, K) and t (N,); found {y.shape} and {t.shape}")
    utils._check_arrays_forward_compatible((y, t), NAME)
    ignore_label = None if ignore_label is None else checks.whole(NAME, "ignore_label", ignore_label)
    top = None if top is None else checks.whole(NAME, "top", top, 1)
    labels = dense(t).astype(np.int32, copy=False)
    with chainer.using_device(chainer.backend.get_device_from_array(y)):
        share = primitives_of(y).accuracy(dense(y), labels, top=top, ignore_label=ignore_label)
    return chainer.Variable(share, requires_grad=False)
