"""Fully connected layers, and embeddings, which multiply with rows of the unit matrix."""

import functools
import math

import chainer
import chainer.functions as F
import numpy as np

from mixprec.functions import checks, layer_gradients, pending, sums
from mixprec.functions.layout import to_nchw
from mixprec.functions.node import Node


def linear(x, W, b=None, n_batch_axes=1):
    """Computes ``x @ W.T + b``, as :func:`chainer.functions.linear` does.

    Args:
        x: (B, C) in a storage dtype. Images (N, H, W, C) with one batch axis are flattened in the order (C, H, W), so
            that weights match Chainer's; any other array is flattened in the order of its axes.
        W: weights (K, C) in the dtype of ``x``.
        b: bias (K,) in the dtype of ``x`` or float32.
        n_batch_axes: number of leading axes of ``x`` that are batch axes.

    Returns:
        Variable (B, K), or with all batch axes (..., K).

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape does not fit.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x, W, b = np.ones((8, 4), np.float16), np.ones((3, 4), np.float16), np.zeros(3, np.float32)
        >>> y = functions.linear(x, W, b)
        >>> y.shape, y.dtype.name, y.array[0].tolist()
        ((8, 3), 'float16', [4.0, 4.0, 4.0])
        >>> words = np.ones((8, 20, 4), np.float16)  # 8 sentences of 20 words
        >>> functions.linear(words, W, n_batch_axes=2).shape
        (8, 20, 3)
    """
    x = chainer.as_variable(checks.variable(Linear.name, "x", x))
    n_batch_axes = checks.whole(Linear.name, "n_batch_axes", n_batch_axes)
    if not 0 < n_batch_axes < max(2, x.ndim):
        raise ValueError(f"linear: n_batch_axes must be from 1 to {x.ndim - 1}; found {n_batch_axes}")
    batch = x.shape[:n_batch_axes]
    if x.ndim == 4 and n_batch_axes == 1 and x.shape[1:3] != (1, 1):
        x = to_nchw(x)
    if x.ndim != 2:
        x = F.reshape(x, (math.prod(batch), math.prod(x.shape[n_batch_axes:])))
    (y,) = Linear().apply((x, W) if b is None else (x, W, b))
    return y if n_batch_axes == 1 else F.reshape(y, (*batch, y.shape[1]))


class Linear(Node):
    """See :func:`linear`; inputs x (B, C), W and perhaps b."""

    name = "linear"
    is_repeatable = True

    def check(self, x, W, b=None):
        checks.dtype(self.name, "x", x)
        checks.same_dtype(self.name, "W", W, "x", x)
        if x.ndim != 2 or W.ndim != 2 or x.shape[1] != W.shape[1]:
            raise ValueError(f"{self.name}: x (B, C) and W (K, C) do not fit; found shapes {x.shape} and {W.shape}")
        if b is not None:
            checks.bias(self.name, b, len(W), x)

    def compute(self, primitives, x, W, b=None):
        self.retain_inputs((0, 1))
        self._bias_dtype = None if b is None else b.dtype
        return (primitives.linear(x, W, b),)

    def gradients(self, primitives, indexes, dy):
        x, W = self.retained()
        if layer_gradients.now.observer is not None:
            layer_gradients.tell_linear(self.inputs[1:], x, dy)
        of_weights, of_bias = primitives.linear_wgrad, primitives.bias_grad
        if sums.uses_of(self.inputs[1]) > 1:  # as in a recurrent network
            of_weights = functools.partial(pending.product, primitives, self.inputs[1])
            of_bias = functools.partial(pending.total, primitives, self.inputs[-1])
        return (
            primitives.linear_dgrad(dy, W) if 0 in indexes else None,
            of_weights(x, dy) if 1 in indexes else None,
            of_bias(dy, self._bias_dtype) if 2 in indexes else None,
        )[: len(self.inputs)]


class EmbedID(Node):
    """Computes what :func:`chainer.functions.embed_id` does; inputs t, integers of at least one axis, and W (V, C).

    Args:
        ignore_label: label whose rows are zeros, or ``None``.
    """

    name = "embed_id"
    is_repeatable = True

    def __init__(self, ignore_label=None):
        self._ignore_label = None if ignore_label is None else int(ignore_label)

    def check(self, t, W):
        checks.dtype(self.name, "W", W)
        if t.dtype.kind != "i" or not t.ndim or W.ndim != 2:
            raise ValueError(f"{self.name}: t (...) of integers and W (V, C) needed; found shapes {t.shape}, {W.shape}")

    def compute(self, primitives, t, W):
        self.retain_inputs((0,))
        self._rows = len(W)
        if chainer.is_debug() and not (((t >= 0) & (t < len(W))) | (t == self._ignore_label)).all():
            raise ValueError("Each not ignored `x` value need to satisfy `0 <= x < len(W)`")  # as in Chainer
        return (primitives.embed(W, _known(t), self._ignore_label),)

    def gradients(self, primitives, indexes, dy):
        (t,) = self.retained()
        t, dy = _known(t).reshape(-1), dy.reshape(-1, dy.shape[-1])
        return None, pending.segments(primitives, self.inputs[1], t, dy, self._rows, self._ignore_label)


def _known(t):
    """Returns labels as int32 or int64."""
    return t if t.dtype in (np.int32, np.int64) else t.astype(np.int32)
