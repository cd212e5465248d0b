"""The NCCL of a device that computes nothing: it takes notes instead."""

import contextlib

from mixprec.backends.device_log import record
from mixprec.backends.nccl import Asked


class Nccl:
    """In place of :class:`~mixprec.backends.nccl.Nccl`."""

    def __init__(self):
        self.asked, self._held = Asked(), []

    @contextlib.contextmanager
    def beside(self, *held):
        """There is one stream, but what is held until :meth:`join` has its memory for itself."""
        self._held.append(held)
        yield

    def join(self):
        """Holds nothing any more."""
        self._held.clear()

    def all_reduce(self, array, found=None):
        """Notes a sum."""
        found = array if found is None else found
        record("nccl", "all_reduce", array.ctypes.data, found.ctypes.data, array.size, array.dtype.name)

    def all_gather(self, array, found):
        """Notes that arrays are gathered."""
        record("nccl", "all_gather", array.ctypes.data, found.ctypes.data, array.size, array.dtype.name)

    def broadcast(self, array):
        """Notes a broadcast."""
        record("nccl", "broadcast", array.ctypes.data, array.size, array.dtype.name)
