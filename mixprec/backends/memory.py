"""The order of axes in memory: elementwise work on several arrays only needs the same order in all.

An array is *dense* if some permutation of its axes is C-contiguous, like a filter of shape (K, C, R, S) whose memory is
(K, R, S, C). Strides of axes of length 1 do not count: a 1x1 filter may have any.
"""

import functools


def axes(array):
    """Returns the axes of an array in memory order, a tuple: axes of length 1, then the others, the outermost first."""
    return _axes(array.shape, array.strides)


@functools.lru_cache(maxsize=4096)
def _axes(shape, strides):
    if 0 in shape:
        return tuple(range(len(shape)))
    short = [axis for axis, length in enumerate(shape) if length == 1]
    long = [axis for axis, length in enumerate(shape) if length > 1]
    return (*short, *sorted(long, key=lambda axis: -abs(strides[axis])))


def is_dense(array):
    """Whether some permutation of an array's axes is C-contiguous."""
    return array.flags.c_contiguous or array.transpose(axes(array)).flags.c_contiguous


def same_order(a, b):
    """Whether two arrays of one shape have their axes in the same order in memory."""
    return (a.flags.c_contiguous and b.flags.c_contiguous) or axes(a) == axes(b)


def flat(array):
    """Returns the memory of a dense array, a view of one dimension."""
    turned = array.transpose(axes(array))
    if not turned.flags.c_contiguous:
        raise ValueError(f"an array of shape {array.shape} and strides {array.strides} is not dense")
    return turned.reshape(-1)


def shaped(memory, model):
    """Returns a view of contiguous memory, of one dimension, with the shape and the order of axes of ``model``."""
    order = axes(model)
    return turned_back(memory.reshape([model.shape[axis] for axis in order]), order)


def in_order_of(array, model):
    """Returns a dense copy of an array, with the memory order of ``model``."""
    order = axes(model)
    return turned_back(array.transpose(order).copy(order="C"), order)


def turned_back(array, order):
    """Returns the view of which ``array`` is ``view.transpose(order)``."""
    return array.transpose(sorted(range(len(order)), key=order.__getitem__))
