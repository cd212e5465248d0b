"""Symmetric matrices as their lower triangles, for snapshots and for sums over ranks: the upper ones do not count."""

import functools

import numpy as np
from chainer import backend


def packed(array):
    """Returns what counts of an array: of matrices (groups, D, D) their lower triangles (groups, D (D + 1) / 2)."""
    return array[(slice(None), *_lower(array))] if array.ndim == 3 else array


def unpack(values, out):
    """Writes what :func:`packed` gave, in any shape of its size, to an array (groups, D, D), or of the same shape."""
    if out.ndim == 3:
        rows, columns = _lower(out)
        values = values.reshape(len(out), -1)
        out[:, rows, columns] = values
        out[:, columns, rows] = values
    else:
        out[...] = values.reshape(out.shape)


def size_of(array):
    """Returns the number of elements of :func:`packed`."""
    return len(array) * array.shape[1] * (array.shape[1] + 1) // 2 if array.ndim == 3 else array.size


def _lower(array):
    """Returns indices of rows and columns of lower triangles, on the device of matrices (groups, D, D)."""
    device = backend.get_device_from_array(array)
    return [device.send(indices) for indices in _indices(array.shape[1])]


@functools.lru_cache(maxsize=4)
def _indices(size):
    return np.tril_indices(size)
