"""Logits and labels: softmax and sigmoid cross entropies, and accuracy."""

import chainer
import numpy as np
from chainer import utils

from mixprec.backends import primitives_of
from mixprec.base import arguments
from mixprec.functions import checks
from mixprec.functions.node import Node, dense

_ACCURACY = "accuracy"


def softmax_cross_entropy(
    x, t, normalize=True, class_weight=None, ignore_label=-1, reduce="mean", *, smoothing=0.0, mixed=None
):
    """Computes the loss of :func:`chainer.functions.softmax_cross_entropy` in float32, the classes being the last axis.

    With label smoothing (Szegedy et al. 2016, arXiv:1512.00567, section 7) the target distribution is
    ``1 - smoothing`` at the label plus ``smoothing / K`` everywhere; class weights multiply the terms of the sum over
    classes, as in ``torch.nn.functional.cross_entropy``. For mixed images (Zhang et al. 2018, arXiv:1710.09412) the
    share ``1 - smoothing`` is divided between the labels of both.

    Args:
        x: logits (N, K) or (N, ..., K) in a storage dtype.
        t: integer labels (N,) or (N, ...) from 0 to K - 1, or ``ignore_label``. Other labels raise ValueError on NumPy;
            on a device labels are not checked.
        normalize: whether ``"mean"`` divides by the number of labels that are not ignored; otherwise by N.
        class_weight: ``None`` or an array (K,).
        ignore_label: a label whose loss is 0.
        reduce: ``"mean"``, or ``"no"`` for the loss of each label.
        smoothing: from 0 to below 1.
        mixed: ``None``, or a pair ``(second, share)`` for mixed images: the labels of the images that were mixed in,
            from 0 to K - 1 where ``t`` counts, and the share of ``t`` in the target, from 0 to 1, float32, of the
            shape of ``t`` or () for all. They get no gradient, and on a device they are not checked.

    Returns:
        Variable () or, with ``reduce="no"``, of the shape of ``t``; float32.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape, an option or a label does not fit.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x, t = np.array([[2, 0, 0], [0, 0, 2]], np.float16), np.array([0, 1], np.int32)
        >>> print(functions.softmax_cross_entropy(x, t, reduce="no").array.round(3))
        [0.24 2.24]
        >>> share = np.array(0.7, np.float32)  # the images are mixed: 70 % of one, 30 % of the other
        >>> loss = functions.softmax_cross_entropy(x, t, smoothing=0.1, mixed=(t[::-1], share))
        >>> loss.dtype.name, round(float(loss.array), 3)
        ('float32', 1.543)
    """
    name = SoftmaxCrossEntropy.name
    normalize, ignore_label, smoothing = _checked(name, normalize, ignore_label, reduce, smoothing)
    if class_weight is not None and not isinstance(class_weight, chainer.get_array_types()):
        raise TypeError(
            f"{name}: class_weight must be an array, it gets no gradient; found {type(class_weight).__name__}"
        )
    node = SoftmaxCrossEntropy(normalize, ignore_label, reduce, class_weight=class_weight, smoothing=smoothing)
    return node.apply((x, t, *_pair(name, mixed)))[0]


def binary_cross_entropy(
    x, t, normalize=True, ignore_label=-1, reduce="mean", *, smoothing=0.0, threshold=None, mixed=None
):
    """Computes the mean over the classes of the cross entropies of sigmoids, in float32.

    Each class is a separate binary decision: ``max(x, 0) - x * q + log(1 + exp(-|x|))`` with the target q as in
    :func:`softmax_cross_entropy`. The recipes of "ResNet strikes back" (Wightman et al. 2021, arXiv:2110.00476, section
    2.2) use this loss; ``torch.nn.functional.binary_cross_entropy_with_logits`` has the same formula.

    Args:
        x: logits (N, K) or (N, ..., K) in a storage dtype.
        t: integer labels, as for :func:`softmax_cross_entropy`.
        normalize: as for :func:`softmax_cross_entropy`.
        ignore_label: as for :func:`softmax_cross_entropy`.
        reduce: as for :func:`softmax_cross_entropy`.
        smoothing: from 0 to below 1.
        threshold: ``None``, or a number: targets above it become 1, and others 0. With mixed images, both classes are
            then right if their share of the target is above it. It must lie between ``smoothing / K``, the target of
            other classes, and ``1 - smoothing + smoothing / K``, the target of the label.
        mixed: as for :func:`softmax_cross_entropy`.

    Returns:
        Variable () or, with ``reduce="no"``, of the shape of ``t``; float32.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape, an option or a label does not fit.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x, t = np.zeros((2, 3), np.float16), np.array([0, 2], np.int32)
        >>> round(float(functions.binary_cross_entropy(x, t).array), 4)  # log(2): each sigmoid is 0.5
        0.6931
    """
    name = BinaryCrossEntropy.name
    normalize, ignore_label, smoothing = _checked(name, normalize, ignore_label, reduce, smoothing)
    threshold = None if threshold is None else checks.number(name, "threshold", threshold, 0.0, below=1.0)
    node = BinaryCrossEntropy(normalize, ignore_label, reduce, smoothing=smoothing, threshold=threshold)
    return node.apply((x, t, *_pair(name, mixed)))[0]


def _checked(name, normalize, ignore_label, reduce, smoothing):
    """Returns the arguments that both losses share, except ``reduce``, which is only checked."""
    normalize = checks.flag(name, "normalize", normalize)
    ignore_label = checks.whole(name, "ignore_label", ignore_label)
    arguments.choice(f"{name}: reduce", reduce, ("mean", "no"))
    return normalize, ignore_label, checks.number(name, "smoothing", smoothing, 0.0, below=1.0)


def _pair(name, mixed):
    """Returns second labels and shares as inputs, or nothing."""
    if mixed is None:
        return ()
    if not isinstance(mixed, (tuple, list)) or len(mixed) != 2:
        raise TypeError(f"{name}: mixed must be a pair (second, share); found {arguments.found(mixed)}")
    return tuple(mixed)


class CrossEntropy(Node):
    """Of logits and labels; inputs x and t, and second and share of mixed images."""

    _accuracy = None

    def __init__(self, normalize, ignore_label, reduce, **options):
        self._normalize = normalize
        self._mean = reduce == "mean"
        self._options = {"ignore_label": ignore_label, **options}

    def check(self, x, t, second=None, share=None):
        checks.dtype(self.name, "x", x)
        for argument, labels in (("t", t), ("second", second)):
            if labels is None:
                continue
            if labels.dtype.kind != "i":
                raise TypeError(f"{self.name}: {argument} must be signed integers; found {labels.dtype}")
            if x.ndim < 2 or labels.shape != x.shape[:-1]:
                raise ValueError(
                    f"{self.name}: {argument} must have the shape of x without its last axis, the classes; found "
                    f"{labels.shape} and {x.shape}"
                )
        if share is not None and (share.dtype != np.float32 or share.shape not in ((), t.shape)):
            raise ValueError(
                f"{self.name}: share must be float32, () or of the shape of t, {t.shape}; found {share.dtype} and "
                f"{share.shape}"
            )

    def compute(self, primitives, x, t, second=None, share=None):
        self.retain_inputs((0, 1) if second is None else (0, 1, 2, 3))
        last, ignored = x.shape[-1] - 1, self._options["ignore_label"]
        self._check_labels(t, t, last, f"labels must be from 0 to {last}, or {ignored} to be ignored")
        self._check_labels(second, t, last, f"second labels must be from 0 to {last} where t counts")
        logits, labels, mixed = self._flat(x, t, second, share)
        divisor = 0 if self._normalize else max(1, len(x))
        losses, mean = self._losses(primitives, logits, labels, mixed, divisor if self._mean else None)
        if mean is None:
            return (losses.reshape(t.shape),)
        loss, self._factor, self._accuracy = mean
        return (loss,)

    def accuracy(self, y, t, ignore_label):
        """Returns the accuracy of exactly these arrays, () float32, if the launch of the loss found it, else None."""
        is_same = self.inputs[0].data is y and self.inputs[1].data is t
        return self._accuracy if is_same and self._options["ignore_label"] == ignore_label else None

    def gradients(self, primitives, indexes, dy):
        inputs = self.retained()
        dlosses, factor = (dy, self._factor) if self._mean else (dy.reshape(-1), None)
        dx = self._gradient_of(primitives, dlosses, *self._flat(*inputs), factor)
        return dx.reshape(inputs[0].shape), *(None,) * (len(inputs) - 1)

    def _losses(self, primitives, logits, labels, mixed, divisor):
        """Returns the loss of each row (M,), and the values over all rows."""
        raise NotImplementedError

    def _gradient_of(self, primitives, dlosses, logits, labels, mixed, factor):
        """Returns the gradient of the logits (M, K)."""
        raise NotImplementedError

    def _flat(self, x, t, second=None, share=None):
        """Returns logits (M, K), labels (M,) int32, and ``None`` or a pair of second labels and shares."""
        logits, labels = x.reshape(-1, x.shape[-1]), _flat_labels(t)
        if second is None:
            return logits, labels, None
        return logits, labels, (_flat_labels(second), share.reshape(-1) if share.ndim else share)

    def _check_labels(self, labels, t, last, expected):
        """Labels on the host must be from 0 to ``last`` where ``t`` is not ignored."""
        if type(labels) is np.ndarray:
            wrong = labels[((labels < 0) | (labels > last)) & (t != self._options["ignore_label"])]
            if wrong.size:
                raise ValueError(f"{self.name}: {expected}; found {wrong[0]}")


def _flat_labels(t):
    return t.reshape(-1).astype(np.int32, copy=False)


class SoftmaxCrossEntropy(CrossEntropy):
    """See :func:`softmax_cross_entropy`."""

    name = "softmax_cross_entropy"

    def __init__(self, normalize, ignore_label, reduce, *, class_weight, smoothing):
        super().__init__(normalize, ignore_label, reduce, class_weight=class_weight, smoothing=smoothing)
        self.options = None if class_weight is None else class_weight.shape

    def check(self, x, t, second=None, share=None):
        super().check(x, t, second, share)
        weight = self._options["class_weight"]
        if weight is not None and weight.shape != x.shape[-1:]:
            raise ValueError(f"{self.name}: class_weight must have shape {x.shape[-1:]}; found {weight.shape}")

    def _losses(self, primitives, logits, labels, mixed, divisor):
        weight = self._options["class_weight"]
        if weight is not None:
            weight = chainer.backend.get_device_from_array(logits).send(weight).astype(np.float32, copy=False)
            self._options["class_weight"] = weight
        options = {**self._options, "mixed": mixed, "divisor": divisor}
        losses, self._log_z, mean = primitives.softmax_cross_entropy(logits, labels, **options)
        return losses, mean

    def _gradient_of(self, primitives, dlosses, logits, labels, mixed, factor):
        return primitives.softmax_cross_entropy_backward(
            dlosses, logits, labels, self._log_z, factor=factor, mixed=mixed, **self._options
        )


class BinaryCrossEntropy(CrossEntropy):
    """See :func:`binary_cross_entropy`."""

    name = "binary_cross_entropy"

    def __init__(self, normalize, ignore_label, reduce, *, smoothing, threshold):
        super().__init__(normalize, ignore_label, reduce, smoothing=smoothing, threshold=threshold)
        self.options = smoothing, threshold

    def check(self, x, t, second=None, share=None):
        super().check(x, t, second, share)
        smoothing, threshold = self.options
        others = smoothing / x.shape[-1]
        if threshold is not None and not others <= threshold < 1 - smoothing + others:
            raise ValueError(
                f"{self.name}: threshold must be from {others:g} to below {1 - smoothing + others:g}, the targets of "
                f"other classes and of the label; found {threshold:g}"
            )

    def _losses(self, primitives, logits, labels, mixed, divisor):
        return primitives.binary_cross_entropy(logits, labels, mixed=mixed, divisor=divisor, **self._options)

    def _gradient_of(self, primitives, dlosses, logits, labels, mixed, factor):
        return primitives.binary_cross_entropy_backward(
            dlosses, logits, labels, factor=factor, mixed=mixed, **self._options
        )


def accuracy(y, t, ignore_label=None, *, top=None, loss=None):
    """Computes the accuracy, as :func:`chainer.functions.accuracy` does, in one launch on a GPU. It has no gradient.

    Args:
        y: logits (N, K) in a storage dtype, variable or array.
        t: integer labels (N,) in the range of int32, variable or array. A label that is not a class always counts as
            wrong.
        ignore_label: a label that does not count, or ``None``.
        top: ``None``: the label's logit must be the largest; among equals the first, as for argmax, and NaN is larger
            than all numbers. A number ``k``: it must be among the ``k`` largest logits; equal logits and NaN count as
            larger, and all logits do if it is NaN itself.
        loss: ``None``, or a variable. If it is a mean of :func:`softmax_cross_entropy` or :func:`binary_cross_entropy`
            of exactly these arrays, with the same ``ignore_label``, and still has its graph, the loss has already
            computed the accuracy, on a GPU in the same launch. The arrays must not have changed since.

    Returns:
        Variable (), float32; 0 if no label counts.

    Raises:
        TypeError: a dtype does not fit, or only one array is on the host.
        ValueError: a shape or an option does not fit.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> y = np.array([[0.1, 0.9, 0.0], [0.2, 0.3, 0.5]], np.float16)  # logits of 2 images, 3 classes
        >>> t = np.array([1, 1], np.int32)
        >>> float(functions.accuracy(y, t).array), float(functions.accuracy(y, t, top=2).array)
        (0.5, 1.0)
    """
    y, t = (chainer.as_array(checks.variable(_ACCURACY, name, x)) for name, x in (("y", y), ("t", t)))
    checks.dtype(_ACCURACY, "y", y)
    _check_predictions(y, t)
    ignore_label = None if ignore_label is None else checks.whole(_ACCURACY, "ignore_label", ignore_label)
    top = None if top is None else checks.whole(_ACCURACY, "top", top, 1)
    if not (loss is None or isinstance(loss, chainer.Variable)):
        raise arguments.not_a(f"{_ACCURACY}: loss", loss, "a chainer.Variable")
    node = None if loss is None or top is not None else loss.creator_node
    found = node.accuracy(y, t, ignore_label) if isinstance(node, CrossEntropy) else None
    return _share(y, t, ignore_label, top) if found is None else chainer.Variable(found, requires_grad=False)


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
        logits = dense(y)
        share = primitives_of(y).accuracy(logits, labels, top=top, ignore_label=ignore_label)
    return chainer.Variable(share, requires_grad=False)
