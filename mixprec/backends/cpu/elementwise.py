"""Addition, ReLU and mixed images on NumPy.

A ReLU works on bits, as NumPy compares float16 one by one: above 0 the bits are ordered as the numbers are.
"""

import numpy as np

from mixprec.backends.cpu.blocks import narrow, widen


class Elementwise:
    """The elementwise primitives of :class:`~mixprec.backends.primitives.Primitives`."""

    def add(self, a, b):
        """See :meth:`~mixprec.backends.primitives.Primitives.add`."""
        with np.errstate(over="ignore", invalid="ignore"):  # inf, and inf - inf: the loss scale watches for that
            return narrow(np.add(widen(a), widen(b), out=np.empty(a.shape, np.float32)), a.dtype)

    def relu(self, x):
        """See :meth:`~mixprec.backends.primitives.Primitives.relu`."""
        bits, infinity = _bits(x), _infinity(x.dtype)
        magnitude = bits & np.iinfo(bits.dtype).max
        return np.where((bits > 0) | (magnitude > infinity), bits, bits.dtype.type(0)).view(x.dtype)

    def relu_backward(self, dy, y):
        """See :meth:`~mixprec.backends.primitives.Primitives.relu_backward`."""
        bits = _bits(dy)
        return np.where(is_positive(y), bits, bits.dtype.type(0)).view(dy.dtype)

    def mix_images(self, x, share, box):
        """See :meth:`~mixprec.backends.primitives.Primitives.mix_images`."""
        other, share = x[::-1], np.float32(share)
        if share == 1 or share == 0:  # unchanged: infinity times 0 would be NaN
            y = np.ascontiguousarray(x if share else other).copy()
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                y = narrow(widen(x) * share + widen(other) * (np.float32(1) - share), x.dtype)
        top, left, bottom, right = box
        y[:, top:bottom, left:right] = other[:, top:bottom, left:right]
        return y


def is_positive(array):
    """Returns where an array of any storage dtype is above 0, as booleans."""
    bits = _bits(array)
    return (bits > 0) & (bits <= _infinity(array.dtype))


def _bits(array):
    return array.view(f"i{array.itemsize}")


def _infinity(dtype):
    return _bits(np.array(np.inf, dtype))
