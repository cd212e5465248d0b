"""Arrays (..., C) in blocks of whole rows, as flat float32 arrays: how all that is per channel is computed on NumPy.

NumPy repeats a row of C elements over a block in three times the time that it takes for two blocks of the same size, so
what is per channel is repeated once, to a block. Sums over rows are matrix products with ones.
"""

import math

import numpy as np

from mixprec.backends.cpu.storage import BLOCK, narrow_to, widen_to

_LONGEST = 4096  # rows whose sum is taken in float32


class Rows:
    """Walks over arrays of one shape.

    Args:
        shape: (..., C).

    Attributes:
        channels: C.
        count: number of rows.
    """

    def __init__(self, shape):
        self.channels = shape[-1]
        self.count = math.prod(shape[:-1])
        self._rows = max(min(BLOCK // max(self.channels, 1), _LONGEST, self.count), 1)
        self._ones = np.ones(self._rows, np.float32)

    def blocks(self):
        """Yields slices of flat arrays."""
        step = self._rows * self.channels
        size = self.count * self.channels
        for start in range(0, size, step or 1):
            yield slice(start, min(start + step, size))

    def scratch(self, dtype=np.float32):
        """Returns an uninitialized flat array, one block long."""
        return np.empty(self._rows * self.channels, dtype)

    def repeat(self, vector):
        """Returns a vector (C,) repeated to a block, float32."""
        return np.tile(np.asarray(vector, np.float32), self._rows)

    def sum(self, block):
        """Returns the sum (C,) of the rows of a flat float32 block, float32."""
        block = self.matrix(block)
        return self._ones[: len(block)] @ block

    def matrix(self, block):
        """Returns a view (rows, C) of a flat block."""
        return block.reshape(-1, self.channels)


def read(array, part, scratch):
    """Returns a part of a flat array as float32: itself, if that is its dtype, otherwise widened into scratch."""
    source = array[part]
    if source.dtype == np.float32:
        return source
    out = scratch[: source.size]
    widen_to(source, out)
    return out


def target(array, part, scratch):
    """Returns a float32 array to compute a part of a flat array in: that part itself, or scratch."""
    if array.dtype == np.float32:
        return array[part]
    return scratch[: part.stop - part.start]


def write(array, part, block):
    """Rounds what was computed in :func:`target` into its place."""
    if array.dtype != np.float32:
        narrow_to(block, array[part])
