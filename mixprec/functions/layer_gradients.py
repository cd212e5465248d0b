"""What layers know of their gradients in the backward pass, for a preconditioner: :func:`observing` looks on.

The nodes of :mod:`mixprec.functions` with filters and batch normalizations tell an :class:`Observer` the arrays that
they compute gradients from. Nothing is kept for it: it looks while the arrays are there.
"""

import threading

from mixprec.backends.geometry import Convolution
from mixprec.base.interface import Interface
from mixprec.base.scoped import scoped

_POINTWISE = Convolution()


class Observer(Interface):
    """Is told of every layer that a backward pass goes through. Arrays must not be changed, nor kept."""

    def filters(self, inputs, x, dy, w_shape, convolution):
        """Of a convolution or a linear layer.

        Args:
            inputs: variable nodes of W, and of the bias if there is one.
            x: (N, H, W, C) in the storage dtype, the input, or in the form of ``convolution``; of a linear layer
                (B, 1, 1, C).
            dy: (N, OH, OW, K), the gradient of the output, scaled as the loss is.
            w_shape: (K, R, S, C / groups).
            convolution: :class:`~mixprec.backends.geometry.Convolution`.
        """

    def scales(self, inputs, x, dy, arrays, saved, relu):
        """Of a batch normalization with the statistics of the batch.

        Args:
            inputs: variable nodes of gamma and beta.
            x: (N, ..., C) in the storage dtype, the input.
            dy: like ``x``: the gradient behind the ReLU if ``relu``, otherwise that of the normalized batch.
            arrays: gamma and beta, (C,) float32.
            saved: :class:`~mixprec.backends.geometry.Saved`.
            relu: whether there was a ReLU without an addition.
        """


class _Now(threading.local):
    """Of this thread.

    Attributes:
        observer: the :class:`Observer`, or ``None``.
    """

    observer = None


now = _Now()


def observing(observer):
    """Inside of the block backward passes of this thread tell ``observer`` of their layers, and no other one."""
    return scoped(now, observer=observer)


def creator_of(node):
    """Returns the function that has computed a variable node, or ``None``.

    In a backward pass of a part of a graph another function may stand in its place, with it as ``stands_for``.
    """
    creator = node.creator_node
    while hasattr(creator, "stands_for"):
        creator = creator.stands_for
    return creator


def tell_linear(inputs, x, dy):
    """Tells the observer of a linear layer: x (B, C), dy (B, K)."""
    (rows, channels), outputs = x.shape, dy.shape[1]
    image, gradient = x.reshape(rows, 1, 1, channels), dy.reshape(rows, 1, 1, outputs)
    now.observer.filters(inputs, image, gradient, (outputs, 1, 1, channels), _POINTWISE)
