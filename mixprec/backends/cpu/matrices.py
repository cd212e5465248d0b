"""Linear layers and losses on NumPy: arithmetic on matrices (rows, features) in float32, products by BLAS."""

import numpy as np

from mixprec.backends.cpu.blocks import Rows, narrow, read, widen
from mixprec.base.dtypes import FLOAT32

_quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")


class Linears:
    """The linear layers of :class:`~mixprec.backends.primitives.Primitives`."""

    @_quiet
    def linear(self, x, w, b=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear`."""
        y = widen(x) @ widen(w).T
        if b is not None:
            y += widen(b)
        return narrow(y, x.dtype)

    @_quiet
    def linear_dgrad(self, dy, w):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear_dgrad`."""
        return narrow(widen(dy) @ widen(w), dy.dtype)

    @_quiet
    def linear_wgrad(self, x, dy):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear_wgrad`."""
        return narrow(widen(dy).T @ widen(x), dy.dtype)

    @_quiet
    def bias_grad(self, dy, dtype):
        """See :meth:`~mixprec.backends.primitives.Primitives.bias_grad`."""
        rows = Rows(dy.shape)
        flat, scratch = dy.reshape(-1), rows.scratch()
        total = np.zeros(rows.channels)
        for part in rows.blocks():
            total += rows.sum(read(flat, part, scratch))
        return narrow(total.astype(np.float32), dtype)

    @_quiet
    def add_bias(self, x, b):
        """See :meth:`~mixprec.backends.primitives.Primitives.add_bias`."""
        rows = Rows(x.shape)
        bias = rows.repeat(widen(b))
        return rows.mapped(x, lambda block, out: np.add(block, bias[: block.size], out=out))


class Losses:
    """The losses of :class:`~mixprec.backends.primitives.Primitives`."""

    @_quiet
    def softmax_cross_entropy(
        self, x, t, *, class_weight=None, smoothing=0.0, ignore_label=-1, mixed=None, divisor=None
    ):
        """See :meth:`~mixprec.backends.primitives.Primitives.softmax_cross_entropy`."""
        x = self.cast(x, FLOAT32)
        largest = np.maximum.reduce(x, axis=1, keepdims=True)
        shifted = x - largest  # at most 0: exponentials do not overflow
        log_sum = np.log(np.add.reduce(np.exp(shifted), axis=1))
        counted = t != ignore_label
        losses = np.float32(0)
        for labels, share in _targets(t, counted, mixed):
            of_label = log_sum - np.take_along_axis(shifted, labels[:, None], axis=1)[:, 0]
            if class_weight is not None:
                of_label *= class_weight[labels]
            losses = losses + share * of_label
        if smoothing:
            weights = np.ones(x.shape[1], np.float32) if class_weight is None else class_weight
            of_all = (log_sum[:, None] - shifted) @ weights
            losses = np.float32(1 - smoothing) * losses + np.float32(smoothing / x.shape[1]) * of_all
        losses = np.where(counted, losses, np.float32(0))
        return losses, largest[:, 0] + log_sum, self._mean(losses, x, t, counted, divisor)

    @_quiet
    def softmax_cross_entropy_backward(
        self, dlosses, x, t, log_z, *, class_weight=None, smoothing=0.0, ignore_label=-1, factor=None, mixed=None
    ):
        """See :meth:`~mixprec.backends.primitives.Primitives.softmax_cross_entropy_backward`."""
        classes = x.shape[1]
        counted = t != ignore_label
        weights = np.ones(classes, np.float32) if class_weight is None else class_weight
        of_labels = [
            (labels, np.float32(1 - smoothing) * weights[labels] * share)
            for labels, share in _targets(t, counted, mixed)
        ]
        of_all = np.float32(smoothing / classes) * weights
        of_each_row = sum([of_label for _, of_label in of_labels]) + np.add.reduce(of_all)
        by_row = _by_row(dlosses, factor, t.shape)
        dx = np.exp(self.cast(x, FLOAT32) - log_z[:, None])
        # The derivative of -sum_k q_k log(p_k) is p * sum_k q_k - q, where q holds the weights of the classes, too.
        dx *= of_each_row[:, None]
        if smoothing:
            dx -= of_all
        for labels, of_label in of_labels:
            dx[np.arange(len(t)), labels] -= of_label
        dx *= by_row
        dx[~counted] = 0
        return self.cast(dx, x.dtype)

    @_quiet
    def binary_cross_entropy(self, x, t, *, smoothing=0.0, threshold=None, ignore_label=-1, mixed=None, divisor=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.binary_cross_entropy`."""
        counted = t != ignore_label
        x, q = self.cast(x, FLOAT32), _distribution(x.shape, t, counted, smoothing, threshold, mixed)
        losses = np.add.reduce(np.maximum(x, 0) - x * q + np.log1p(np.exp(-np.abs(x))), axis=1)
        losses = np.where(counted, losses * np.float32(1 / x.shape[1]), np.float32(0))
        return losses, self._mean(losses, x, t, counted, divisor)

    @_quiet
    def binary_cross_entropy_backward(
        self, dlosses, x, t, *, smoothing=0.0, threshold=None, ignore_label=-1, factor=None, mixed=None
    ):
        """See :meth:`~mixprec.backends.primitives.Primitives.binary_cross_entropy_backward`."""
        counted = t != ignore_label
        q = _distribution(x.shape, t, counted, smoothing, threshold, mixed)
        dx = (1 / (1 + np.exp(-self.cast(x, FLOAT32))) - q) * np.float32(1 / x.shape[1])
        dx *= _by_row(dlosses, factor, t.shape)
        dx[~counted] = 0
        return self.cast(dx, x.dtype)

    def _mean(self, losses, x, t, counted, divisor):
        if divisor is None:
            return None
        factor = np.array(1 / (divisor or max(np.count_nonzero(counted), 1)), np.float32)
        return np.array(np.add.reduce(losses) * factor, np.float32), factor, _share(_predicted(x, t), counted)

    def accuracy(self, x, t, *, top=None, ignore_label=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.accuracy`."""
        counted = np.ones(len(t), bool) if ignore_label is None else t != ignore_label
        return _share(_predicted(self.cast(x, FLOAT32), t, top), counted)


def _predicted(x, t, top=None):
    """Returns for each row (M,) whether its logits predict the label."""
    if top is None:
        return np.argmax(x, axis=1) == t
    known = (t >= 0) & (t < x.shape[1])
    of_label = np.take_along_axis(x, np.where(known, t, 0)[:, None], axis=1)
    return (np.add.reduce(~(x < of_label), axis=1) <= top) & known


def _share(right, counted):
    """Returns the share () float32 of correct rows among the rows that count."""
    return np.array(np.count_nonzero(right & counted) / max(np.count_nonzero(counted), 1), np.float32)


def _targets(t, counted, mixed):
    """Returns ``(labels, share of the target)`` of the one label of a row, whose share is 1, or of two."""
    if mixed is None:
        return [(np.where(counted, t, 0), np.float32(1))]
    second, share = mixed
    return [(np.where(counted, t, 0), share), (np.where(counted, second, 0), np.float32(1) - share)]


def _distribution(shape, t, counted, smoothing, threshold, mixed):
    """Returns the targets of all classes, float32."""
    q = np.full(shape, np.float32(smoothing / shape[1]))
    for labels, share in _targets(t, counted, mixed):
        q[np.arange(len(t)), labels] += np.float32(1 - smoothing) * share
    return q if threshold is None else (q > np.float32(threshold)).astype(np.float32)


def _by_row(dlosses, factor, shape):
    """Returns gradients of the losses of rows as a column."""
    return np.broadcast_to(dlosses if factor is None else dlosses * factor, shape)[:, None]
