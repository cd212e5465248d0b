"""Logits and labels: the cross entropy of the softmax, and the share of labels that are predicted."""

import chainer
import numpy as np
from chainer import utils

from mixprec import arguments
from mixprec.backends import primitives_of
from mixprec.functions import checks
from mixprec.functions.node import Node, dense

_ACCURACY = "accuracy"


def softmax_cross_entropy(x, t, normalize=True, class_weight=None, ignore_label=-1, reduce="mean", *, smoothing=0.0):
    """Computes the loss of :func:`chainer.functions.softmax_cross_entropy` in float32, the classes being the last axis.

    With label smoothing (Szegedy et al. 2016, arXiv:1512.00567, section 7) the target distribution is
    ``1 - smoothing`` at the label plus ``smoothing / K`` everywhere; class weights multiply the terms of the sum over
    classes, as in ``torch.nn.functional.cross_entropy``.

    Args:
        x: logits (N, K) or (N, ..., K) in a storage dtype.
        t: integer labels (N,) or (N, ...) from 0 to K - 1, or ``ignore_label``. Others are a ValueError on NumPy; on a
            device they are not read.
        normalize: whether ``"mean"`` divides by the number of labels that are not ignored; otherwise by N.
        class_weight: ``None`` or an array (K,).
        ignore_label: a label whose loss is 0.
        reduce: ``"mean"``, or ``"no"`` for the loss of each label.
        smoothing: from 0 to below 1.

    Returns:
        Variable () or, with ``reduce="no"``, of the shape of ``t``; float32.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape, an option or a label does not fit.
    """
    name = SoftmaxCrossEntropy.name
    normalize = checks.flag(name, "normalize", normalize)
    ignore_label = checks.whole(name, "ignore_label", ignore_label)
    arguments.choice(f"{name}: reduce", reduce, ("mean", "no"))
    smoothing = checks.number(name, "smoothing", smoothing, 0.0, below=1.0)
    if class_weight is not None and not isinstance(class_weight, chainer.get_array_types()):
        raise TypeError(
            f"{name}: class_weight must be an array, it gets no gradient; found {type(class_weight).__name__}"
        )
    return SoftmaxCrossEntropy(normalize, class_weight, ignore_label, reduce, smoothing).apply((x, t))[0]


class SoftmaxCrossEntropy(Node):
    """See :func:`softmax_cross_entropy`; inputs x and t."""

    name = "softmax_cross_entropy"

    def __init__(self, normalize, class_weight, ignore_label, reduce, smoothing):
        self._normalize = normalize
        self._mean = reduce == "mean"
        self._options = {"class_weight": class_weight, "ignore_label": ignore_label, "smoothing": smoothing}
        self.options = None if class_weight is None else class_weight.shape

    def check(self, x, t):
        checks.dtype(self.name, "x", x)
        if t.dtype.kind != "i":
            raise TypeError(f"{self.name}: t must be signed integers; found {t.dtype}")
        if x.ndim < 2 or t.shape != x.shape[:-1]:
            raise ValueError(
                f"{self.name}: t must have the shape of x without its last axis, the classes; found {t.shape} and "
                f"{x.shape}"
            )
        weight = self._options["class_weight"]
        if weight is not None and weight.shape != x.shape[-1:]:
            raise ValueError(f"{self.name}: class_weight must have shape {x.shape[-1:]}; found {weight.shape}")

    def compute(self, primitives, x, t):
        self.retain_inputs((0, 1))
        self._check_labels(t, x.shape[-1])
        weight = self._options["class_weight"]
        if weight is not None:
            weight = chainer.backend.get_device_from_array(x).send(weight).astype(np.float32, copy=False)
            self._options["class_weight"] = weight
        logits, labels = self._flat(x, t)
        losses, self._log_z = primitives.softmax_cross_entropy(logits, labels, **self._options)
        if not self._mean:
            return (losses.reshape(t.shape),)
        count = None if self._normalize else max(1, len(x))
        loss, self._factor = primitives.mean_of_counted(
            losses, labels, ignore_label=self._options["ignore_label"], count=count
        )
        return (loss,)

    def gradients(self, primitives, indexes, dy):
        x, t = self.retained()
        dlosses, factor = (dy, self._factor) if self._mean else (dy.reshape(-1), None)
        logits, labels = self._flat(x, t)
        dx = primitives.softmax_cross_entropy_backward(
            dlosses, logits, labels, self._log_z, factor=factor, **self._options
        )
        return dx.reshape(x.shape), None

    def _flat(self, x, t):
        """Returns logits (M, K) and labels (M,) int32."""
        labels = t.reshape(-1).astype(np.int32, copy=False)
        return x.reshape(-1, x.shape[-1]), labels

    def _check_labels(self, t, classes):
        if type(t) is not np.ndarray:
            return
        wrong = t[((t < 0) | (t >= classes)) & (t != self._options["ignore_label"])]
        if wrong.size:
            raise ValueError(
                f"{self.name}: labels must be from 0 to {classes - 1}, or {self._options['ignore_label']} to be "
                f"ignored; found {wrong[0]}"
            )


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
    y, t = (chainer.as_array(checks.variable(_ACCURACY, name, x)) for name, x in (("y", y), ("t", t)))
    checks.dtype(_ACCURACY, "y", y)
    _check_predictions(y, t)
    ignore_label = None if ignore_label is None else checks.whole(_ACCURACY, "ignore_label", ignore_label)
    top = None if top is None else checks.whole(_ACCURACY, "top", top, 1)
    return _share(y, t, ignore_label, top)


def accuracy_as_chainer(y, t, ignore_label):
    """Computes :func:`accuracy` for the rule of Chainer's function, which has seen the dtype of the logits."""
    y, t = chainer.as_array(y), chainer.as_array(t)
    _check_predictions(y, t)
    return _share(y, t, None if ignore_label is None else int(ignore_label), None)


def _check_predictions(y, t):
    if t.dtype.kind != "i":
        raise TypeError(f"{_ACCURACY}: t must be signed integers; found {t.dtype}")
    if y.ndim != 2 or t.shape != y.shape[:1]:
        raise ValueError(f"{_ACCURACY}: y must be (N, K) and t (N,); found {y.shape} and {t.shape}")
    utils._check_arrays_forward_compatible((y, t), _ACCURACY)


def _share(y, t, ignore_label, top):
    labels = dense(t).astype(np.int32, copy=False)
    with chainer.using_device(chainer.backend.get_device_from_array(y)):
        share = primitives_of(y).accuracy(dense(y), labels, top=top, ignore_label=ignore_label)
    return chainer.Variable(share, requires_grad=False)
