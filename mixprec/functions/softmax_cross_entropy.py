"""Cross entropy of the softmax of logits with labels, in float32."""

import chainer
import numpy as np

from mixprec import arguments
from mixprec.functions import checks
from mixprec.functions.node import Node


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
