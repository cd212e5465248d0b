"""Poolings on NumPy: one pass over the output for each position in the window, for some images at a time."""

import math

import numpy as np

from mixprec.backends.cpu.blocks import BLOCK, narrow, narrow_to, widen
from mixprec.backends.cpu.convolution import taps_of
from mixprec.backends.geometry import Convolution

_SUMMED = 128  # pixels whose sum is taken in float32
_quiet = np.errstate(over="ignore", invalid="ignore")


class Poolings:
    """The poolings of :class:`~mixprec.backends.primitives.Primitives`."""

    def max_pool(self, x, pooling):
        """See :meth:`~mixprec.backends.primitives.Primitives.max_pool`."""
        out_size = pooling.out_size(x.shape[1:3])
        y = np.empty((x.shape[0], *out_size, x.shape[3]), x.dtype)
        where = np.zeros(y.shape, np.uint8)
        for images in _parts(x.shape):
            keys, best, place = _sortable(x[images]), _lowest(y[images]), where[images]
            for index, inputs, outputs in _positions(pooling, x.shape[1:3], out_size):
                candidates, leaders = keys[inputs], best[outputs]
                ahead = np.greater(candidates, leaders).view(np.uint8)
                np.multiply(ahead, np.uint8(index), out=ahead)
                # Indices rise: the last larger element is the largest of all.
                np.maximum(place[outputs], ahead, out=place[outputs])
                np.maximum(leaders, candidates, out=leaders)
            _from_sortable(best, y.dtype)
        return y, where

    @_quiet
    def max_pool_backward(self, dy, where, pooling, x_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.max_pool_backward`."""
        dx = np.empty(x_shape, dy.dtype)
        for images in _parts(x_shape):
            gradient, place, sums = widen(dy[images]).view(np.int32), where[images], _zeros(dx[images])
            for index, inputs, outputs in _positions(pooling, x_shape[1:3], dy.shape[1:3]):
                chosen = np.equal(place[outputs], np.uint8(index))
                kept = np.negative(chosen.view(np.int8), dtype=np.int32)  # all bits or none
                np.bitwise_and(kept, gradient[outputs], out=kept)
                sums[inputs] += kept.view(np.float32)
            _store(sums, dx[images])
        return dx

    @_quiet
    def average_pool(self, x, pooling):
        """See :meth:`~mixprec.backends.primitives.Primitives.average_pool`."""
        out_size = pooling.out_size(x.shape[1:3])
        y = np.empty((x.shape[0], *out_size, x.shape[3]), x.dtype)
        for images in _parts(x.shape):
            block, sums = widen(x[images]), _zeros(y[images])
            for _, inputs, outputs in _positions(pooling, x.shape[1:3], out_size):
                sums[outputs] += block[inputs]
            sums /= np.float32(math.prod(pooling.window))
            _store(sums, y[images])
        return y

    @_quiet
    def average_pool_backward(self, dy, pooling, x_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.average_pool_backward`."""
        dx = np.empty(x_shape, dy.dtype)
        for images in _parts(x_shape):
            gradient, sums = widen(dy[images]) / np.float32(math.prod(pooling.window)), _zeros(dx[images])
            for _, inputs, outputs in _positions(pooling, x_shape[1:3], dy.shape[1:3]):
                sums[inputs] += gradient[outputs]
            _store(sums, dx[images])
        return dx

    @_quiet
    def global_average_pool(self, x):
        """See :meth:`~mixprec.backends.primitives.Primitives.global_average_pool`."""
        count, height, width, channels = x.shape
        mean = np.empty((count, channels), np.float32)
        for images in _parts(x.shape):
            mean[images] = _sum(widen(x[images]).reshape(-1, height * width, channels))
        mean /= np.float32(height * width)
        return narrow(mean, x.dtype)

    @_quiet
    def global_average_pool_backward(self, dy, x_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.global_average_pool_backward`."""
        size = x_shape[1] * x_shape[2]
        dx = narrow(widen(dy) / np.float32(size), dy.dtype)
        return np.repeat(dx, size, axis=0).reshape(x_shape)


def _sum(pixels):
    """Returns the sum of (n, pixels, C) over the pixels, in float32 over some of them and in float64 beyond."""
    count, size, channels = pixels.shape
    if size <= _SUMMED:
        return np.add.reduce(pixels, axis=1)
    whole = size // _SUMMED * _SUMMED
    blocks = pixels[:, :whole].reshape(count, -1, _SUMMED, channels)
    sums = np.add.reduce(np.add.reduce(blocks, axis=2), axis=1, dtype=np.float64)
    return sums + np.add.reduce(pixels[:, whole:], axis=1)


def _parts(shape):
    """Yields slices of images: as many as stay in the cache, at least one."""
    images = max(BLOCK // max(math.prod(shape[1:]), 1), 1)
    for start in range(0, shape[0], images):
        yield slice(start, start + images)


def _positions(pooling, size, out_size):
    """Yields, for each position in the window, its number, and indices of the input and the output that meet there."""
    moves = Convolution(pooling.stride, pooling.pad)
    for (row, column), outputs, inputs in taps_of(size, out_size, pooling.window, moves):
        yield row * pooling.window[1] + column, inputs, outputs


def _zeros(target):
    """Returns float32 zeros to accumulate a result for ``target``: ``target`` itself if it is float32."""
    if target.dtype != np.float32:
        return np.zeros(target.shape, np.float32)
    target[...] = 0
    return target


def _store(sums, target):
    if sums is not target:
        narrow_to(sums, target)


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


def _lowest(y):
    """Returns the memory of ``y`` as integers, set below the integers of all numbers."""
    keys = y.view(f"i{y.dtype.itemsize}")
    keys[...] = np.iinfo(keys.dtype).min
    return keys


def _from_sortable(keys, dtype):
    """Converts integers back to numbers, in place; -inf for windows entirely outside the input."""
    bits = np.iinfo(keys.dtype)
    np.maximum(keys, -_bits_of_infinity(dtype), out=keys)
    sign = np.right_shift(keys, bits.bits - 1)
    np.bitwise_xor(keys, sign, out=keys)
    np.subtract(keys, sign, out=keys)
    np.bitwise_and(sign, bits.min, out=sign)
    np.bitwise_or(keys, sign, out=keys)


def _bits_of_infinity(dtype):
    return int(np.array(np.inf, dtype).view(f"i{dtype.itemsize}"))
