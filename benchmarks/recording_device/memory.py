"""Memory of a device that computes nothing: addresses that are given out again, as by CuPy's memory pool."""

import contextlib
import heapq
import math

import numpy as np

from benchmarks.recording_device.arrays import NumpyMemory
from mixprec.backends.device_log import is_recording, record

_UNIT = 512  # bytes, as in CuPy


class Pool:
    """Blocks whose sizes are multiples of 512 bytes; of the free ones of a size the oldest goes first.

    Which block that is depends only on which are in use, and not, as in CuPy, on the order in which the others came
    back. So steps that leave the same in use come to have the same addresses, after a few of them. The memory is real,
    and not touched.

    Attributes:
        bytes: all that the pool has, in use or not.
    """

    _push = heapq.heappush  # also there when Python ends

    def __init__(self):
        self._memory = []
        self._ages = {}  # of blocks by address
        self._free = {}  # by size: heaps of (age, address)
        self.bytes = 0

    def allocate(self, size):
        """Returns a :class:`Block` of at least ``size`` bytes."""
        size = _UNIT * max(1, -(-size // _UNIT))
        free = self._free.setdefault(size, [])
        if not free:
            self._memory.append(np.empty(size + _UNIT, np.uint8))
            start = self._memory[-1].ctypes.data
            address = start + -start % _UNIT
            self._ages[address] = len(self._ages)
            self.bytes += size
            return Block(self, address, size)
        _, address = heapq.heappop(free)
        return Block(self, address, size)

    def take_back(self, address, size):
        """Makes a block free."""
        self._push(self._free[size], (self._ages[address], address))


class Block:
    """Memory that goes back to its pool when the last array in it is gone.

    Args:
        pool: :class:`Pool`.
        address: of the first byte.
        size: number of bytes.
    """

    def __init__(self, pool, address, size):
        self._pool, self.address, self.size = pool, address, size
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self):
        self._pool.take_back(self.address, self.size)


class Memory(NumpyMemory):
    """What a device gives out: from one pool, and from a private one while a graph captures.

    Attributes:
        private: the :class:`Pool` of all graphs.
        is_capturing: whether a graph captures.
    """

    def __init__(self):
        self._pool, self.private = Pool(), Pool()
        self.is_capturing = False

    def new(self, shape, dtype, strides=None):
        """See :meth:`NumpyMemory.new <benchmarks.recording_device.arrays.NumpyMemory.new>`; noted."""
        size = math.prod(shape) * dtype.itemsize
        block = (self.private if self.is_capturing else self._pool).allocate(size)
        record("memory", "new", block.address, size)
        return np.ndarray(shape, dtype, np.asarray(block), strides=strides)

    @contextlib.contextmanager
    def capturing(self):
        """While a graph captures: new memory is private, and the host can neither read nor upload."""
        self.is_capturing = True
        try:
            yield
        finally:
            self.is_capturing = False

    def read(self, name):
        """Notes that the host waits for a value.

        Raises:
            RuntimeError: a graph captures.
        """
        self._refuse("D2H")
        record("read", name)

    def upload(self, name, *values):
        """Notes that something of the host is copied to the device.

        Raises:
            RuntimeError: a graph captures.
        """
        self._refuse("H2D")
        record("upload", name, *_described(values))

    def _refuse(self, transfers):
        if self.is_capturing:  # in CuPy's words
            raise RuntimeError(f"the current stream is capturing, so {transfers} transfers are disallowed")

    def note(self, name, *values):
        """Notes a launch."""
        if is_recording():
            record("array", name, *_described(values))


def _described(value):
    """Yields what a note has of an argument: the address of an array and how it lies there, numbers as they are."""
    if type(value) in (tuple, list):
        for part in value:
            yield from _described(part)
    elif type(value) is dict:
        yield from _described(list(value.items()))
    elif isinstance(value, np.generic) or (type(value) is np.ndarray and value.ndim == 0):
        yield value.item()
    elif isinstance(value, np.ndarray):
        if type(value) is not np.ndarray:
            yield value.ctypes.data
        yield value.dtype.name, value.shape, value.strides
    else:
        yield value
