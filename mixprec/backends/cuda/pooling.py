"""Poolings on a CUDA device: one launch each."""

import numpy as np

from mixprec.backends.cuda.base import ceil_div
from mixprec.backends.cuda.columns import Columns

_FILE = "pooling"


class Poolings(Columns):
    """The poolings of :class:`~mixprec.backends.primitives.Primitives`."""

    def max_pool(self, x, pooling):
        shape = (x.shape[0], *pooling.out_size(x.shape[1:3]), x.shape[3])
        y, where = self._empty(shape, x.dtype), self._empty(shape, np.uint8)
        name = "max_pool_3x3" if pooling.window == (3, 3) else "max_pool"
        self._pool(name, [x, y, where], pooling, x.shape, shape, shape)
        return y, where

    def max_pool_backward(self, dy, where, pooling, x_shape):
        dx = self._empty(x_shape, dy.dtype)
        arrays = [dy, where, dx]
        if (pooling.window, pooling.stride) == ((3, 3), (2, 2)):
            squares = (_squares(*lengths) for lengths in zip(x_shape[1:3], pooling.pad, strict=True))
            threads = x_shape[0], *squares, x_shape[3]
            self._pool("max_pool_backward_3x3_2", arrays, pooling, x_shape, dy.shape, threads, threads[1:3])
        else:
            self._pool("max_pool_backward", arrays, pooling, x_shape, dy.shape, x_shape)
        return dx

    def average_pool(self, x, pooling):
        shape = (x.shape[0], *pooling.out_size(x.shape[1:3]), x.shape[3])
        y = self._empty(shape, x.dtype)
        self._pool("average_pool", [x, y], pooling, x.shape, shape, shape)
        return y

    def average_pool_backward(self, dy, pooling, x_shape):
        dx = self._empty(x_shape, dy.dtype)
        self._pool("average_pool_backward", [dy, dx], pooling, x_shape, dy.shape, x_shape)
        return dx

    def global_average_pool(self, x):
        images, height, width, channels = x.shape
        y, size = self._empty((images, channels), x.dtype), height * width
        blocks = self._summing(size, images, channels, x, y)
        after = [size, float(size)]
        self._run_columns("sum_columns", images * blocks.tiles, [x, y, images * size], blocks, after, x.dtype)
        return y

    def global_average_pool_backward(self, dy, x_shape):
        images, height, width, channels = x_shape
        dx, size = self._empty(x_shape, dy.dtype), height * width
        blocks = self._blocks(channels, dy, dx)
        of_block = blocks.rows_to_write(images * size)
        of_row = ceil_div(size, of_block)
        after = [of_block, of_row, float(size)]
        self._run_columns("repeat_rows", images * of_row * blocks.tiles, [dy, dx, size], blocks, after, dy.dtype)
        return dx

    def _pool(self, name, arrays, pooling, in_shape, out_shape, threads, further=()):
        """Launches a kernel with a thread for each element of an array of shape ``threads``; with further arguments."""
        images, height, width, channels = threads
        vector = self._width(channels, *arrays)
        of_image = ceil_div(height * width * (channels // vector), self.launcher.threads)
        arguments = [*arrays, of_image, channels, *in_shape[1:3], *out_shape[1:3]]
        arguments += [*pooling.window, *pooling.stride, *pooling.pad, *further]
        self.kernels.launch(_FILE, name, images * of_image, arguments, arrays[0].dtype, vector)


def _squares(size, pad):
    """Returns the number of pairs of padded rows that are not entirely padding before the image."""
    return (size - 1 + pad) // 2 - pad // 2 + 1
