"""Observers of layers in the backward pass, for a preconditioner: :func:`observing` registers one.

Convolutions, linear layers and batch normalizations of :mod:`mixprec.functions` pass an :class:`Observer` the arrays
that they compute gradients from. Nothing is kept for it: it reads the arrays while they exist.
"""

import threading

from mixprec.backends.geometry import Convolution
from mixprec.base.interface import Interface
from mixprec.base.scoped import scoped

_POINTWISE = Convolution()


class Observer(Interface):
    """Is called for every layer of a backward pass. It must neither change nor keep the arrays."""

    def filters(self, inputs, x, dy, w_shape, convolution):
        """Called for a convolution or a linear layer.

        Args:
            inputs: variable nodes of W, and of the bias if there is one.
            x: (N, H, W, C) in the storage dtype, the input, or in the form of ``convolution``; of a linear layer
                (B, 1, 1, C).
            dy: (N, OH, OW, K), the gradient of the output, scaled as the loss is.
            w_shape: (K, R, S, C / groups).
            convolution: :class:`~mixprec.backends.geometry.Convolution`.
        """

    def scales(self, inputs, x, dy, arrays, saved, relu):
        """Called for a batch normalization with the statistics of the batch.

        Args:
            inputs: variable nodes of gamma and beta.
            x: (N, ..., C) in the storage dtype, the input.
            dy: like ``x``: the gradient after the ReLU if ``relu``, otherwise the gradient of the normalized batch.
            arrays: gamma and beta, (C,) float32.
            saved: :class:`~mixprec.backends.geometry.Saved`.
            relu: whether there was a ReLU without an addition.
        """


class _Now(threading.local):
    """State of this thread.

    Attributes:
        observer: the :class:`Observer`, or ``None``.
    """

    observer = None


now = _Now()


def observing(observer):
    """Inside the block, backward passes of this thread report their layers to ``observer`` only."""
    return scoped(now, observer=observer)


def creator_of(node):
    """Returns the function that computed a variable node, or ``None``.

    In a backward pass of a part of a graph, its creator may be a substitute, with the function as ``stands_for``.
    """
    creator = node.creator_node
    while hasattr(creator, "stands_for"):
        creator = creator.stands_for
    return creator


def tell_linear(inputs, x, dy):
    """Reports a linear layer to the observer: x (B, C), dy (B, K)."""
    (rows, channels), outputs = x.shape, dy.shape[1]
    image, gradient = x.reshape(rows, 1, 1, channels), dy.reshape(rows, 1, 1, outputs)
    now.observer.filters(inputs, image, gradient, (outputs, 1, 1, channels), _POINTWISE)
