"""Poolings on NumPy: one pass over the output for each position of the window, whatever the number of images."""

import numpy as np

from mixprec.backends.cpu.columns import taps_of
from mixprec.backends.cpu.storage import narrow, widen
from mixprec.backends.geometry import Convolution


class Poolings:
    """The poolings of :class:`~mixprec.backends.primitives.Primitives`."""

    def max_pool(self, x, pooling):
        keys = _sortable(x)
        out_size = pooling.out_size(x.shape[1:3])
        shape = (x.shape[0], *out_size, x.shape[3])
        best = np.full(shape, np.iinfo(keys.dtype).min, keys.dtype)  # below every key
        where = np.zeros(shape, np.uint8)
        for index, inputs, outputs in _positions(pooling, x.shape[1:3], out_size):
            candidates, leaders = keys[inputs], best[outputs]
            index_if_larger = np.multiply(np.greater(candidates, leaders), np.uint8(index), dtype=np.uint8)
            np.maximum(leaders, candidates, out=leaders)
            # Indices rise, and so the last one to be larger is the largest one.
            np.maximum(where[outputs], index_if_larger, out=where[outputs])
        return _from_sortable(best, x.dtype), where

    @np.errstate(over="ignore", invalid="ignore")
    def max_pool_backward(self, dy, where, pooling, x_shape):
        dy32 = widen(dy)
        dx = np.zeros(x_shape, np.float32)
        for index, inputs, outputs in _positions(pooling, x_shape[1:3], dy.shape[1:3]):
            dx[inputs] += np.where(where[outputs] == index, dy32[outputs], np.float32(0))
        return narrow(dx, dy.dtype)

    @np.errstate(over="ignore", invalid="ignore")
    def average_pool(self, x, pooling):
        x32 = widen(x)
        out_size = pooling.out_size(x.shape[1:3])
        y = np.zeros((x.shape[0], *out_size, x.shape[3]), np.float32)
        for _, inputs, outputs in _positions(pooling, x.shape[1:3], out_size):
            y[outputs] += x32[inputs]
        y /= np.float32(pooling.window[0] * pooling.window[1])
        return narrow(y, x.dtype)

    @np.errstate(over="ignore", invalid="ignore")
    def average_pool_backward(self, dy, pooling, x_shape):
        dy32 = widen(dy) / np.float32(pooling.window[0] * pooling.window[1])
        dx = np.zeros(x_shape, np.float32)
        for _, inputs, outputs in _positions(pooling, x_shape[1:3], dy.shape[1:3]):
            dx[inputs] += dy32[outputs]
        return narrow(dx, dy.dtype)

    @np.errstate(over="ignore", invalid="ignore")
    def global_average_pool(self, x):
        images, height, width, channels = x.shape
        sums = np.add.reduce(widen(x).reshape(images, height * width, channels), axis=1)
        sums /= np.float32(height * width)
        return narrow(sums, x.dtype)

    @np.errstate(over="ignore", invalid="ignore")
    def global_average_pool_backward(self, dy, x_shape):
        size = x_shape[1] * x_shape[2]
        dx = narrow(widen(dy) / np.float32(size), dy.dtype)
        return np.repeat(dx, size, axis=0).reshape(x_shape)


def _positions(pooling, size, out_size):
    """Yields, for each position in the window, its number, and indices of the input and the output that meet there."""
    moves = Convolution(pooling.stride, pooling.pad)
    for (row, column), outputs, inputs in taps_of(size, out_size, pooling.window, moves):
        yield row * pooling.window[1] + column, inputs, outputs


# Integers in the order of floating-point numbers of the same width; both zeros are 0, and all NaN are the largest.


def _sortable(x):
    bits = np.dtype(f"i{x.dtype.itemsize}")
    infinity, largest = _bits_of_infinity(x.dtype), np.iinfo(bits).max
    keys = x.view(bits)
    sign = np.right_shift(keys, 8 * bits.itemsize - 1)  # 0 or -1
    keys = np.bitwise_and(keys, largest)
    is_nan = keys > infinity if keys.size and np.maximum.reduce(keys, axis=None) > infinity else None
    np.bitwise_xor(keys, sign, out=keys)
    np.subtract(keys, sign, out=keys)
    if is_nan is not None:
        keys[is_nan] = largest
    return keys


def _from_sortable(keys, dtype):
    bits = keys.dtype
    empty = keys == np.iinfo(bits).min  # a window outside the input
    sign = np.right_shift(keys, 8 * bits.itemsize - 1)
    np.bitwise_xor(keys, sign, out=keys)
    np.subtract(keys, sign, out=keys)
    np.bitwise_and(sign, np.iinfo(bits).min, out=sign)
    np.bitwise_or(keys, sign, out=keys)
    if empty.any():
        keys.view(dtype)[empty] = -np.inf
    return keys.view(dtype)


def _bits_of_infinity(dtype):
    return int(np.array(np.inf, dtype).view(f"i{dtype.itemsize}"))
