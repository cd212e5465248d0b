"""Images of another size: interpolation, and the counterparts of poolings.

:mod:`mixprec.rewrite` applies these nodes for Chainer's ``resize_images``, ``unpooling_2d`` and ``upsampling_2d``.
"""

import math

import chainer
import numpy as np
from chainer.functions.array.resize_images import compute_indices_and_weights

from mixprec.base.dtypes import FLOAT32
from mixprec.functions import checks
from mixprec.functions.node import Node, dense


class _Resizing(Node):
    """A node from images (N, H, W, C) to (N, OH, OW, C).

    Args:
        out_size: (OH, OW).
    """

    image_inputs = (0,)
    is_repeatable = True

    def __init__(self, out_size):
        self._out_size = self.options = tuple(out_size)

    def check(self, x):
        checks.images(self.name, "x", x)


class ResizeImages(_Resizing):
    """Interpolates in float32: between two rows, and then between two columns.

    Both gradients are products with the matrix of the weights, which adds up in the same order every time.

    Args:
        out_size: (OH, OW).
        mode: ``"bilinear"`` or ``"nearest"``.
        align_corners: whether corners stay corners.
    """

    name = "resize_images"

    def __init__(self, out_size, mode="bilinear", align_corners=True):
        super().__init__(out_size)
        self._how = mode, align_corners

    def compute(self, primitives, x):
        self._x = x.shape, x.dtype
        y = primitives.cast(x, FLOAT32)
        for axis, (lower, weights) in enumerate(self._neighbours(x), start=1):
            upper = (lower + 1).clip(0, x.shape[axis] - 1)
            weights = weights.reshape(-1, *[1] * (3 - axis))
            y = y.take(lower, axis=axis) * (1 - weights) + y.take(upper, axis=axis) * weights
        return (primitives.cast(y, x.dtype),)

    def _neighbours(self, x):
        """Returns for each axis of pixels the lower of two neighbours of each result, and the weight of the upper."""
        xp = chainer.backend.get_array_module(x)
        size = self._x[0][1:3]
        rows, columns, row_weights, column_weights = compute_indices_and_weights(self._out_size, size, *self._how, xp)
        return [
            (each.astype(np.intp), weights.astype(np.float32))
            for each, weights in ((rows, row_weights), (columns, column_weights))
        ]

    def gradients(self, primitives, indexes, dy):
        shape, dtype = self._x
        xp = chainer.backend.get_array_module(dy)
        dx = primitives.cast(dy, FLOAT32)
        with np.errstate(over="ignore", invalid="ignore"):
            for axis, (lower, weights) in reversed(list(enumerate(self._neighbours(dy), start=1))):
                size = shape[axis]
                matrix = xp.zeros((size, len(lower)), np.float32)
                places = xp.arange(len(lower))
                matrix[lower, places] = 1 - weights
                matrix[(lower + 1).clip(0, size - 1), places] += weights
                before, after = dx.shape[:axis], dx.shape[axis + 1 :]
                dx = xp.matmul(matrix, dx.reshape(-1, len(lower), math.prod(after))).reshape(*before, size, *after)
        return (primitives.cast(dx, dtype),)


class Unpooling2D(_Resizing):
    """Repeats each pixel ``window`` times; the gradient is a sum in float32.

    Args:
        out_size: (OH, OW), at most H and W times the window.
        pooling: :class:`~mixprec.backends.geometry.Pooling` from (OH, OW) to (H, W), its stride being its window.
    """

    name = "unpooling_2d"

    def __init__(self, out_size, pooling):
        super().__init__(out_size)
        self._pooling = pooling

    def compute(self, primitives, x):
        rows, columns = self._pooling.window
        images, height, width, channels = x.shape
        xp = chainer.backend.get_array_module(x)
        y = xp.broadcast_to(x[:, :, None, :, None], (images, height, rows, width, columns, channels))
        y = y.reshape(images, height * rows, width * columns, channels)
        return (dense(y[:, : self._out_size[0], : self._out_size[1]]),)

    def gradients(self, primitives, indexes, dy):
        means = primitives.average_pool(primitives.cast(dy, FLOAT32), self._pooling)
        return (primitives.cast(means * np.float32(math.prod(self._pooling.window)), dy.dtype),)


class Upsampling2D(_Resizing):
    """Writes each pixel to the position of the maximum that it was pooled from; the other pixels are zeros.

    Args:
        out_size: (OH, OW).
        pooling: :class:`~mixprec.backends.geometry.Pooling` from (OH, OW) to (H, W).
        where: indices in the windows, uint8 (N, H, W, C), from
            :meth:`~mixprec.backends.primitives.Primitives.max_pool`.
    """

    name = "upsampling_2d"

    def __init__(self, out_size, pooling, where):
        super().__init__(out_size)
        self._pooling, self._where = pooling, where

    def compute(self, primitives, x):
        shape = (x.shape[0], *self._out_size, x.shape[3])
        return (primitives.max_pool_backward(x, self._where, self._pooling, shape),)

    def gradients(self, primitives, indexes, dy):
        xp = chainer.backend.get_array_module(dy)
        images, *size, channels = self._where.shape
        inside, pixels = True, []
        where, columns = self._where.astype(np.int32), self._pooling.window[1]
        for axis, place in enumerate((where // columns, where % columns)):
            start = xp.arange(size[axis]) * self._pooling.stride[axis] - self._pooling.pad[axis]
            pixel = start.reshape(-1, *[1] * (2 - axis)) + place
            inside = inside & (pixel >= 0) & (pixel < self._out_size[axis])
            pixels.append(pixel.clip(0, self._out_size[axis] - 1))
        dx = primitives.cast(dy, FLOAT32)[(xp.arange(images)[:, None, None, None], *pixels, xp.arange(channels))]
        return (primitives.cast(xp.where(inside, dx, np.float32(0)), dy.dtype),)
