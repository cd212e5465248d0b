"""A stand-in for the streams, events and memory of CuPy: work is done later, in any order that CUDA allows.

It has what :class:`mixprec.backends.pinned_copies.PinnedCopies` uses, with the rules that CuPy and CUDA have: memory of
the pool takes attributes and no weak references, and goes back at once, to the next that asks on the same stream;
events do not reach into captures or out of them; and what comes into a capture has to be joined.
"""

import contextlib
import ctypes
import functools
import itertools
import types

import numpy as np

from tests.stand_ins.legal_orders import Order


class CUDARuntimeError(RuntimeError):
    """As that of CuPy."""


class PooledMemory:
    """Memory that is full of 0xFF for the device as soon as it is free."""

    __slots__ = ("__dict__", "_machine", "device_id", "ptr", "size")

    def __init__(self, machine, ptr, size):
        self._machine, self.ptr, self.size, self.device_id = machine, ptr, size, 0

    def __del__(self):
        self._machine.take_back(self.ptr, self.size)


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem, offset):
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, 0


class Array:
    """``cupy.ndarray``."""

    def __init__(self, shape, dtype, data, strides=None):
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), data
        self.size = int(np.prod(shape))
        self.strides = np.empty(shape, dtype).strides if strides is None else strides


class PinnedMemory:
    """Memory of the host."""

    def __init__(self, size):
        self._memory = np.full(size, 0xFF, np.uint8)
        self.ptr = self._memory.ctypes.data


class Event:
    """Is recorded again and again; who has waited for it has waited for what it was then."""

    def __init__(self, machine, disable_timing=False):
        self._machine, self.key, self.capture, self._is_timed = machine, None, None, not disable_timing

    def record(self, stream):
        self.key, self.capture = next(self._machine.numbers), stream.capture
        stream.ask(None, None, self.key)

    def synchronize(self):
        if self.capture is not None:
            raise CUDARuntimeError("cudaErrorCapturedEvent")
        self._machine.finish(self.key)


class Stream:
    """A queue of work, see :mod:`tests.stand_ins.legal_orders`; in a capture the work goes into that."""

    def __init__(self, machine, non_blocking=False):
        self._machine, self.capture = machine, None
        self.ptr = len(machine.streams) + 100
        machine.streams[self.ptr] = self
        machine.order = Order(machine.streams, machine.seed)

    def ask(self, function, before=None, then=None):
        queues = self._machine.queues if self.capture is None else self.capture
        queues.setdefault(self.ptr, []).append((function, before, then))

    def wait_event(self, event):
        if self.capture is None and event.capture is not None:
            if event.capture is not self._machine.capture:
                raise CUDARuntimeError("cudaErrorInvalidValue")
            self.capture = event.capture
        elif self.capture is not event.capture:
            raise CUDARuntimeError("cudaErrorStreamCaptureIsolation")
        self.ask(None, event.key)

    def is_capturing(self):
        return self.capture is not None

    def begin_capture(self):
        self.capture = self._machine.capture = {}

    def end_capture(self):
        """Returns a callable that launches the graph."""
        captured, self._machine.capture = self.capture, None
        for stream in self._machine.streams.values():
            stream.capture = None
        waited = {before for _, before, _ in captured.get(self.ptr, ())}
        if any(queue[-1][2] not in waited for ptr, queue in captured.items() if ptr != self.ptr):
            raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined")
        return functools.partial(self.ask, functools.partial(self._machine.launch, captured))

    def synchronize(self):
        event = Event(self._machine)
        event.record(self)
        event.synchronize()


class Machine:
    """All that a device has; ``cupy`` is the module.

    Args:
        seed: of the order in which streams do their work.

    Attributes:
        main: the current stream.
        waits: how often the host has waited.
    """

    def __init__(self, seed=0):
        self.seed, self.order = seed, None
        self.streams, self.queues, self.capture = {}, {}, None
        self.numbers = itertools.count(1)
        self.there, self.waits, self.used = {None}, 0, 0
        self._free, self._memory = {}, []
        self.main = Stream(self)
        self._allocate = self.allocate
        pool = types.SimpleNamespace(used_bytes=lambda: self.used, get_limit=lambda: 0)
        runtime = types.SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            memcpyDeviceToHost=2,
            memcpyHostToDevice=1,
            memcpyAsync=self._memcpy,
            memGetInfo=lambda: (10**9, 2 * 10**9),
        )
        cuda = types.SimpleNamespace(
            runtime=runtime,
            Device=lambda number: _Device(),
            Stream=functools.partial(Stream, self),
            Event=functools.partial(Event, self),
            PinnedMemory=PinnedMemory,
            MemoryPointer=MemoryPointer,
            memory=types.SimpleNamespace(PooledMemory=PooledMemory),
            alloc=lambda size: self._allocate(size),
            get_allocator=lambda: self._allocate,
            using_allocator=self._using,
            get_current_stream=lambda: self.main,
            get_elapsed_time=lambda start, end: 1000.0 * (end.key - start.key),
        )
        self.cupy = types.SimpleNamespace(cuda=cuda, ndarray=Array, get_default_memory_pool=lambda: pool)

    def allocate(self, size):
        """Returns a place in memory, of the main stream."""
        size = -(-size // 512) * 512
        self.used += size
        if self._free.get(size):
            ptr = self._free[size].pop()
        else:
            self._memory.append(np.full(size, 0xFF, np.uint8))
            ptr = self._memory[-1].ctypes.data
        return MemoryPointer(PooledMemory(self, ptr, size), 0)

    def take_back(self, ptr, size):
        """To be called when memory is free."""
        self.used -= size
        self._free.setdefault(size, []).append(ptr)
        self.main.ask(functools.partial(ctypes.memset, ptr, 0xFF, size))

    @contextlib.contextmanager
    def _using(self, allocate):
        outer, self._allocate = self._allocate, allocate
        try:
            yield
        finally:
            self._allocate = outer

    def _memcpy(self, target, source, size, kind, ptr):
        self.streams[ptr].ask(functools.partial(ctypes.memmove, target, source, size))

    def finish(self, key):
        """Does what comes before an event, and perhaps more."""
        self.waits += 1
        self._run(self.queues, self.there, key)

    def launch(self, captured):
        """Runs a graph."""
        self._run({ptr: list(queue) for ptr, queue in captured.items()}, {None}, object())

    def _run(self, queues, there, until):
        for ptr in self.streams:
            queues.setdefault(ptr, [])
        while until not in there and (ptr := self.order.next(queues, there)) is not None:
            function, _, then = queues[ptr].pop(0)
            there.add(then)
            if function is not None:
                function()
        assert until in there or not any(queues.values()), "streams wait for each other"


class _Device:
    id = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass
