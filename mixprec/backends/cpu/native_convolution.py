"""Convolutions by the native library, and linear layers as convolutions of single pixels.

See :mod:`mixprec.backends.cpu.native_primitives`.
"""

import numpy as np

from mixprec.backends.geometry import Convolution, Following
from mixprec.native.native_library import is_stored, library, raw

_POINTWISE = Convolution()


class NativeConvolutions:
    """The convolutions and linear layers of :class:`~mixprec.backends.primitives.Primitives`, by the library."""

    def conv_fprop(self, x, w, convolution, b=None, *, relu=False, statistics=False):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_fprop`."""
        following = isinstance(statistics, Following)  # which takes its own sums, after rounding
        if (statistics and not following) or not computes(x, w) or _is_depthwise(w.shape, convolution):
            return super().conv_fprop(x, w, convolution, b, relu=relu, statistics=statistics)
        y = fprop(x, w, convolution, b, relu)
        return (y, None) if following else y

    def conv_dgrad(self, dy, w, convolution, x_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_dgrad`."""
        if not computes(dy, w) or 0 in x_shape or _is_depthwise(w.shape, convolution):
            return super().conv_dgrad(dy, w, convolution, x_shape)
        return dgrad(dy, w, convolution, x_shape)

    def conv_wgrad(self, x, dy, convolution, w_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_wgrad`."""
        if not computes(x, dy) or 0 in w_shape or _is_depthwise(w_shape, convolution):
            return super().conv_wgrad(x, dy, convolution, w_shape)
        return wgrad(x, dy, convolution, w_shape)

    def linear(self, x, w, b=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear`."""
        if not computes(x, w):
            return super().linear(x, w, b)
        return fprop(x[None, None], w[:, None, None], _POINTWISE, b)[0, 0]

    def linear_dgrad(self, dy, w):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear_dgrad`."""
        if not computes(dy, w):
            return super().linear_dgrad(dy, w)
        return dgrad(dy[None, None], w[:, None, None], _POINTWISE, (1, 1, len(dy), w.shape[1]))[0, 0]

    def linear_wgrad(self, x, dy):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear_wgrad`."""
        if not computes(x, dy):
            return super().linear_wgrad(x, dy)
        return wgrad(x[None, None], dy[None, None], _POINTWISE, (dy.shape[1], 1, 1, x.shape[1]))[:, 0, 0]


def _is_depthwise(w_shape, convolution):
    """Whether each channel has its own filter, which NumPy computes without a product of matrices."""
    return w_shape[0] == convolution.groups and w_shape[3] == 1


def computes(a, b):
    """Whether the library multiplies two arrays: both of one storage dtype, and not empty."""
    return a.dtype == b.dtype and is_stored(a.dtype) and a.size > 0 and b.size > 0


def fprop(x, w, convolution, b=None, relu=False):
    """Returns y (N, OH, OW, K) for x (N, H, W, C), w (K, R, S, C / groups) and b ``None`` or (K,)."""
    moves = _moves(convolution)
    y = np.empty(convolution.y_shape(x.shape, w.shape), x.dtype)
    bias = None if b is None else raw(b.astype(np.float32, copy=False))
    library().conv_fprop(x.shape, w.shape, moves, raw(x), raw(w), bias, int(relu), raw(y))
    return y


def dgrad(dy, w, convolution, x_shape):
    """Returns dx (N, H, W, C) = ``x_shape``."""
    dx = np.empty(x_shape, dy.dtype)
    library().conv_dgrad(dx.shape, w.shape, _moves(convolution), raw(dy), raw(w), raw(dx))
    return dx


def wgrad(x, dy, convolution, w_shape):
    """Returns dw (K, R, S, C / groups) = ``w_shape``."""
    dw = np.empty(w_shape, x.dtype)
    library().conv_wgrad(x.shape, dw.shape, _moves(convolution), raw(x), raw(dy), raw(dw))
    return dw


def _moves(convolution):
    return (*convolution.stride, *convolution.pad, *convolution.dilation, convolution.groups)
