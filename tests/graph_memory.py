"""Memory of the stand-in device of :mod:`graph_array`: a pool as CuPy's, whose memory is NaN unless it was written."""

import collections
import ctypes

import numpy as np

_ROUND = 512


class Pool:
    """Gives out memory; what was freed last comes first, so that the same requests get the same addresses.

    Attributes:
        total: bytes that it has, free or not.
    """

    def __init__(self):
        self._segments = []  # they stay: a graph may write into what nobody holds any more
        self._free = collections.defaultdict(list)
        self.total = 0

    def allocate(self, size):
        """Returns a :class:`Block`, free again when it is dropped."""
        size = max(1, -(-size // _ROUND)) * _ROUND
        if self._free[size]:
            address = self._free[size].pop()
        else:
            segment = np.empty(size + _ROUND, np.uint8)
            self._segments.append(segment)
            self.total += size
            address = -(-segment.ctypes.data // _ROUND) * _ROUND
        return Block(self, address, size)

    def _release(self, address, size):
        ctypes.memset(address, 0xFF, size)
        self._free[size].append(address)


class Block:
    """Memory that belongs to somebody: the base of an array, and of its views."""

    def __init__(self, pool, address, size):
        self._pool, self.address, self.size = pool, address, size
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}
        ctypes.memset(address, 0xFF, size)

    def __del__(self):
        self._pool._release(self.address, self.size)
