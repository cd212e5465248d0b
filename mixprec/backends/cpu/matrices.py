"""Linear layers and losses on NumPy: arithmetic on matrices (rows, features) in float32, products by BLAS."""

import numpy as np

from mixprec.backends.cpu.blocks import Rows, narrow, read, target, widen, write

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
        y = np.empty(x.shape, x.dtype)
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        bias, scratch = rows.repeat(widen(b)), rows.scratch()
        for part in rows.blocks():
            block, out = read(flat_x, part, scratch), target(flat_y, part, scratch)
            np.add(block, bias[: block.size], out=out)
            write(flat_y, part, out)
        return y


class Losses:
    """The losses of :class:`~mixprec.backends.primitives.Primitives`."""

    @_quiet
    def softmax_cross_entropy(self, x, t, *, class_weight=None, smoothing=0.0, ignore_label=-1):
        """See :meth:`~mixprec.backends.primitives.Primitives.softmax_cross_entropy`."""
        x = widen(x)
        largest = np.maximum.reduce(x, axis=1, keepdims=True)
        shifted = x - largest  # at most 0: exponentials do not overflow
        log_sum = np.log(np.add.reduce(np.exp(shifted), axis=1))
        counted = t != ignore_label
        labels = np.where(counted, t, 0)
        losses = log_sum - np.take_along_axis(shifted, labels[:, None], axis=1)[:, 0]
        if class_weight is not None:
            losses *= class_weight[labels]
        if smoothing:
            weights = np.ones(x.shape[1], np.float32) if class_weight is None else class_weight
            of_all = (log_sum[:, None] - shifted) @ weights
            losses = np.float32(1 - smoothing) * losses + np.float32(smoothing / x.shape[1]) * of_all
        return np.where(counted, losses, np.float32(0)), largest[:, 0] + log_sum

    @_quiet
    def softmax_cross_entropy_backward(
        self, dlosses, x, t, log_z, *, class_weight=None, smoothing=0.0, ignore_label=-1, factor=None
    ):
        """See :meth:`~mixprec.backends.primitives.Primitives.softmax_cross_entropy_backward`."""
        classes = x.shape[1]
        counted = t != ignore_label
        labels = np.where(counted, t, 0)
        weights = np.ones(classes, np.float32) if class_weight is None else class_weight
        of_label = np.float32(1 - smoothing) * weights[labels]
        of_all = np.float32(smoothing / classes) * weights
        dx = np.exp(widen(x) - log_z[:, None])
        # The derivative of -sum_k q_k log(p_k) is p * sum_k q_k - q, where q holds the weights of the classes, too.
        dx *= (of_label + np.add.reduce(of_all))[:, None]
        if smoothing:
            dx -= of_all
        dx[np.arange(len(t)), labels] -= of_label
        dlosses = dlosses if factor is None else dlosses * factor
        dx *= np.broadcast_to(dlosses, t.shape)[:, None]
        dx[~counted] = 0
        return narrow(dx, x.dtype)

    @_quiet
    def mean_of_counted(self, losses, t, *, ignore_label=-1, count=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.mean_of_counted`."""
        if count is None:
            count = max(np.count_nonzero(t != ignore_label), 1)
        factor = np.array(1 / count, np.float32)
        return np.array(np.add.reduce(losses) * factor, np.float32), factor

    def accuracy(self, x, t, *, top=None, ignore_label=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.accuracy`."""
        x = widen(x)
        known = (t >= 0) & (t < x.shape[1])
        labels = np.where(known, t, 0)[:, None]
        if top is None:
            right = np.argmax(x, axis=1) == t
        else:
            right = np.add.reduce(~(x < np.take_along_axis(x, labels, axis=1)), axis=1) <= top
        counted = np.ones(len(t), bool) if ignore_label is None else t != ignore_label
        share = np.count_nonzero(right & known & counted) / max(np.count_nonzero(counted), 1)
        return np.array(share, np.float32)
