"""Poolings by the native library; see :mod:`mixprec.backends.cpu.native_primitives`."""

import numpy as np

from mixprec.native.native_library import are_stored_alike, library, raw

_MOST = 1 << 20  # the longest window, stride and padding of the library


class NativePoolings:
    """The poolings of :class:`~mixprec.backends.primitives.Primitives`, by the library."""

    def max_pool(self, x, pooling):
        """See :meth:`~mixprec.backends.primitives.Primitives.max_pool`."""
        if not _is_possible(x, pooling):
            return super().max_pool(x, pooling)
        y = _output(x, pooling)
        where = np.empty(y.shape, np.uint8)
        library().max_pool(raw(x), *_windows(x.shape, y.shape, pooling), raw(y), where)
        return y, where

    def max_pool_backward(self, dy, where, pooling, x_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.max_pool_backward`."""
        if not _is_possible(dy, pooling):
            return super().max_pool_backward(dy, where, pooling, x_shape)
        dx = np.empty(x_shape, dy.dtype)
        library().max_pool_backward(raw(dx), *_windows(x_shape, dy.shape, pooling), raw(dy), raw(where))
        return dx

    def average_pool(self, x, pooling):
        """See :meth:`~mixprec.backends.primitives.Primitives.average_pool`."""
        if not _is_possible(x, pooling):
            return super().average_pool(x, pooling)
        y = _output(x, pooling)
        library().average_pool(raw(x), *_windows(x.shape, y.shape, pooling), raw(y))
        return y

    def average_pool_backward(self, dy, pooling, x_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.average_pool_backward`."""
        if not _is_possible(dy, pooling):
            return super().average_pool_backward(dy, pooling, x_shape)
        dx = np.empty(x_shape, dy.dtype)
        library().average_pool_backward(raw(dx), *_windows(x_shape, dy.shape, pooling), raw(dy))
        return dx

    def global_average_pool(self, x):
        """See :meth:`~mixprec.backends.primitives.Primitives.global_average_pool`."""
        if not are_stored_alike(x):
            return super().global_average_pool(x)
        images, height, width, channels = x.shape
        y = np.empty((images, channels), x.dtype)
        library().global_average_pool(raw(x), (images, height * width, channels), raw(y))
        return y


def _is_possible(array, pooling):
    return are_stored_alike(array) and max(*pooling.window, *pooling.stride, *pooling.pad) <= _MOST


def _output(x, pooling):
    return np.empty((x.shape[0], *pooling.out_size(x.shape[1:3]), x.shape[3]), x.dtype)


def _windows(shape, out_shape, pooling):
    return (*map(int, shape), *map(int, out_shape[1:3])), pooling.window, pooling.stride, pooling.pad
