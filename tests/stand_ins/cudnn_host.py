"""A stand-in for the device under cuDNN's stand-in, ``fake_cudnn``: the host, with a clock of its own."""

import contextlib
import ctypes
import types

import numpy as np


class HostDevice:
    """Has the interface of :class:`mixprec.backends.cudnn.cupy_device.CupyDevice`.

    Args:
        took: callable that says how many milliseconds the last call took; by default all calls take 1.

    Attributes:
        allocated: sizes of all memory that was asked for.
    """

    name, capability, driver = "NVIDIA Host & Co.", 90, 13000

    def __init__(self, took=lambda: 1.0):
        self._took = took
        self._stream, self._capturing = 0, False
        self.allocated = []

    def current(self):
        return contextlib.nullcontext()

    def stream(self):
        return self._stream

    def capturing(self):
        return self._capturing

    def allocate(self, size):
        self.allocated.append(size)
        memory = np.zeros(size + 256, np.uint8)
        return types.SimpleNamespace(ptr=-(-memory.ctypes.data // 256) * 256, memory=memory)

    def copy(self, target, source, size):
        ctypes.memmove(target, source, size)

    def fill(self, address, byte, size):
        ctypes.memset(address, byte, size)

    def synchronize(self):
        pass

    def difference(self, a, b, count, dtype):
        dtype = np.dtype(dtype)
        one, other = (np.frombuffer((ctypes.c_byte * (count * dtype.itemsize)).from_address(x), dtype) for x in (a, b))
        one, other = one.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(one) & np.isfinite(other)
        apart = np.abs(one[finite] - other[finite])
        scale = np.abs(one[finite])
        return apart.max(initial=0), scale.max(initial=0), int((np.isfinite(one) != np.isfinite(other)).sum())

    def times(self, functions):
        milliseconds = []
        for function in functions:
            function()
            milliseconds.append(self._took())
        return milliseconds

    @contextlib.contextmanager
    def on(self, stream, *, capturing=False):
        """Makes another stream the current one, perhaps one that is capturing a graph."""
        before = self._stream, self._capturing
        self._stream, self._capturing = stream, capturing
        try:
            yield
        finally:
            self._stream, self._capturing = before
