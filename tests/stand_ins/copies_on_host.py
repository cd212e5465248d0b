"""Copies of the stand-in device of :mod:`tests.stand_ins.graph_on_host`: on two streams of ``graph_work``."""

import collections
import contextlib
import ctypes
import itertools
import math

import numpy as np

from benchmarks.recording_device.memory import Block
from mixprec.backends.copy_interface import Copies, Layout
from mixprec.backends.device_log import record
from tests.stand_ins import graph_work, nan_pool
from tests.stand_ins.graph_array import GraphArray


class HostCopies(Copies):
    """Copies to arrays of the host.

    Args:
        to: ``"host"``.

    Attributes:
        asked: ``("out" or "back", bytes)`` of all copies that were asked for.
        clock: callable without arguments, for :meth:`tick`: seconds, of which each call takes 1/1024 by default.
        rates: what :meth:`bus` returns.
        slots: number of slots that were made.
    """

    rates = 2.0**30, 2.0**30, 0.0

    def __init__(self, to="host"):
        assert to == "host"
        self.asked = []
        self.clock = itertools.count(0, 1 / 1024).__next__
        self.slots = 0
        self._free = collections.defaultdict(list)
        self._last = {}  # by stream: event of its last copy, and the key of the capture
        self._meter = None

    def root_of(self, array):
        root = array
        while isinstance(root, np.ndarray):
            root = root.base
        return root if isinstance(root, Block) and array.size else None

    def size_of(self, root):
        return root.size

    def token_of(self, root):
        return root

    def layout_of(self, array):
        return Layout(array.ctypes.data - self.root_of(array).address, array.shape, array.dtype, array.strides)

    def array_in(self, root, layout):
        memory = np.asarray(root)
        return np.ndarray.__new__(GraphArray, layout.shape, layout.dtype, memory, layout.offset, layout.strides)

    def take(self, size):
        if self._free[size]:
            return self._free[size].pop()
        self.slots += 1
        return _Slot(size)

    def give(self, slot):
        self._free[slot.memory.nbytes].append(slot)

    def trim(self):
        self._free.clear()

    def out(self, root, slot):
        return self._copy("out", graph_work.OUT, slot, slot.memory.ctypes.data, root.address, root.address)

    def back(self, slot):
        root = graph_work.memory(slot.memory.nbytes)
        return root, self._copy("back", graph_work.BACK, slot, root.address, slot.memory.ctypes.data, root.address)

    def _copy(self, name, stream, slot, target, source, address):
        size = slot.memory.nbytes
        record("copy", name, address, size)
        self.asked.append((name, size))
        self._after_main(stream)
        event, where = slot.last
        if where is _where():
            graph_work.wait(stream, event)
        graph_work.copy(stream, _move, slot, target, source, size)
        slot.last = self._last[stream] = graph_work.record(stream), _where()
        return slot.last

    def _after_main(self, stream):
        graph_work.wait(stream, graph_work.record(graph_work.FIRST))

    def wait(self, mark):
        event, where = mark
        if where is _where():
            graph_work.wait(graph_work.FIRST, event)

    def join(self):
        for mark in self._last.values():
            self.wait(mark)
        self._last.clear()

    @contextlib.contextmanager
    def measuring(self):
        with nan_pool.metering() as meter:
            outer, self._meter = self._meter, meter
            try:
                yield
            finally:
                self._meter = outer

    def peak(self):
        peak, self._meter.peak = self._meter.peak, nan_pool.in_use()
        return peak

    def allocated(self):
        return nan_pool.in_use()

    def tick(self):
        return self.clock()

    def seconds(self, start, end):
        return end - start

    def total(self):
        return nan_pool.limit() if math.isfinite(nan_pool.limit()) else 2**34

    def bus(self):
        return self.rates

    def close(self):
        self.join()
        self.trim()


class _Slot:
    """Pinned memory; ``last`` is the event of the last copy to or from it, and the key of the capture."""

    def __init__(self, size):
        self.memory = np.full(size, 0xFF, np.uint8)
        self.last = None, None


def _where():
    """Returns the key of the capture that is under way, or ``None``: other captures have other events."""
    return None if nan_pool.now.work is None else nan_pool.now.work.key


def _move(slot, target, source, size):
    """Copies bytes; the slot is there as long as the work is."""
    ctypes.memmove(target, source, size)
