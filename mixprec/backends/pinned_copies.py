"""Copies between a GPU and pinned memory of the host, through CuPy; see :mod:`mixprec.backends.copy_interface`.

The host never waits for the device. In the capture of a CUDA graph copies become a part of the graph: their streams
come into the capture as they wait for the main one, and leave it by :meth:`PinnedCopies.join`.
"""

import collections
import contextlib
import weakref

from mixprec.backends.copy_interface import Copies, Layout
from mixprec.backends.device_log import record
from mixprec.base.messages import OneLineError
from mixprec.base.process_limits import host_memory
from mixprec.base.scoped import scoped

_SHARE = 0.4  # of the memory of the host that may be pinned
_UNIT = 4096  # bytes
_PROBE = 2**25  # bytes of a copy by which the speed is measured
# Slots in graphs, by device and capacity. They stay: a graph may be launched later than anything here is closed. All
# graphs of a device run one after the other, and have nothing in a slot from one launch to the next: they share them.
_in_graphs = collections.defaultdict(list)
_pinned = collections.Counter()  # bytes, of all devices


class PinnedCopies(Copies):
    """Copies on two separate streams.

    Args:
        device_id: number of the CUDA device.
    """

    def __init__(self, device_id):
        import cupy  # not at the top: mixprec runs without it

        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._device = cupy.cuda.Device(device_id)
        with self._device:
            self._out, self._back = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
            self._fork = self._new_event()
        self._limit = int(_SHARE * host_memory())
        self._free = collections.defaultdict(list)  # by capacity
        self._last = {}  # by stream: the mark of its last copy, if the main stream has not waited for that
        self._round = object()  # replaced by each join()
        self._captures = False
        self._pool, self._peak = cupy.get_default_memory_pool(), 0
        self._rates = None

    def _new_event(self):
        return self._cupy.cuda.Event(disable_timing=True)

    def root_of(self, array):
        if not isinstance(array, self._cupy.ndarray):
            return None
        memory = array.data.mem
        if not isinstance(memory, self._cupy.cuda.memory.PooledMemory) or memory.device_id != self._device.id:
            return None
        return memory if array.size else None

    def size_of(self, root):
        return root.size

    def token_of(self, root):
        try:
            return root.mixprec_token
        except AttributeError:  # CuPy's object takes attributes, but no weak references
            root.mixprec_token = _Token(root.ptr, root.size)
            return root.mixprec_token

    def layout_of(self, array):
        return Layout(array.data.ptr - array.data.mem.ptr, array.shape, array.dtype, array.strides)

    def array_in(self, root, layout):
        with self._device:
            place = self._cupy.cuda.MemoryPointer(root, layout.offset)
            return self._cupy.ndarray(layout.shape, layout.dtype, place, layout.strides)

    def take(self, size):
        capacity = -(-size // _UNIT) * _UNIT
        with self._device:
            captures = self._main().is_capturing()
            for slots in (_in_graphs[self._device.id, capacity],) * captures + (self._free[capacity],):
                with contextlib.suppress(IndexError):
                    slot = slots.pop()
                    slot.size = size
                    return slot
            if _pinned["bytes"] + capacity > self._limit and not captures:
                self.trim()
            if _pinned["bytes"] + capacity > self._limit:
                raise OneLineError(
                    f"offloading needs {(_pinned['bytes'] + capacity) / 1e9:.3g} GB of pinned memory, and may use "
                    f"{self._limit / 1e9:.3g} GB: {_SHARE:.0%} of the memory of this machine"
                )
            try:
                memory = self._cupy.cuda.PinnedMemory(capacity)
            except self._runtime.CUDARuntimeError as error:
                raise OneLineError(f"cannot allocate {capacity / 1e9:.3g} GB of pinned memory: {error}") from None
        return _Slot(memory, capacity, size)

    def give(self, slot):
        if slot.is_in_graph:
            _in_graphs[self._device.id, slot.capacity].append(slot)
        else:
            self._free[slot.capacity].append(slot)

    def trim(self):
        for slots in list(self._free.values()):
            while slots:
                slot = slots.pop()
                if slot.last is not None:
                    slot.last.event.synchronize()

    def out(self, root, slot):
        kind = self._runtime.memcpyDeviceToHost
        return self._copy("out", self._out, slot, slot.memory.ptr, root.ptr, kind, root.ptr)

    def back(self, slot):
        with self._device:
            root = self._cupy.cuda.alloc(slot.size).mem
        kind = self._runtime.memcpyHostToDevice
        return root, self._copy("back", self._back, slot, root.ptr, slot.memory.ptr, kind, root.ptr)

    def _copy(self, name, stream, slot, target, source, kind, address):
        # The address of the slot need not be the same in each step, and so is not recorded.
        record("copy", name, address, slot.size)
        with self._device:
            main = self._main()
            captures = self._begin(main)
            self._fork.record(main)
            stream.wait_event(self._fork)
            if slot.last is not None and slot.last.round is self._round:
                stream.wait_event(slot.last.event)
            self._runtime.memcpyAsync(target, source, slot.size, kind, stream.ptr)
            event = self._new_event()
            event.record(stream)
        slot.is_in_graph |= captures
        slot.last = self._last[stream] = _Mark(event, stream, self._round)
        return slot.last

    def _main(self):
        return self._cupy.cuda.get_current_stream()

    def _begin(self, main):
        """Returns whether the main stream captures. When a capture begins, the host waits, as the stream cannot."""
        captures = main.is_capturing()
        if captures != self._captures:
            if captures:
                for mark in self._last.values():
                    mark.event.synchronize()
            self._captures = captures
            self._forget()
        return captures

    def _forget(self):
        self._last.clear()
        self._round = object()

    def wait(self, mark):
        with self._device:
            main = self._main()
            self._begin(main)
            if mark.round is not self._round:  # the host or the main stream has waited for it
                return
            main.wait_event(mark.event)
        if self._last.get(mark.stream) is mark:
            del self._last[mark.stream]

    def join(self):
        with self._device:
            main = self._main()
            captures = self._begin(main)
            # An error in a capture that is broken shows again at its end, and so does a stream that is not joined.
            with contextlib.suppress(self._runtime.CUDARuntimeError) if captures else contextlib.nullcontext():
                for mark in self._last.values():
                    main.wait_event(mark.event)
        self._forget()

    @contextlib.contextmanager
    def measuring(self):
        cuda = self._cupy.cuda
        allocate = cuda.get_allocator()
        pool = getattr(allocate, "__self__", None)

        def measured(size):
            memory = allocate(size)
            self._peak = max(self._peak, self._in_use())
            return memory

        with scoped(self, _pool=pool if hasattr(pool, "used_bytes") else self._pool):
            self._peak = self._in_use()
            with cuda.using_allocator(measured):
                yield

    def peak(self):
        peak, self._peak = self._peak, self._in_use()
        return max(peak, self._peak)

    def _in_use(self):
        with self._device:
            return self._pool.used_bytes()

    def allocated(self):
        with self._device:
            return self._cupy.get_default_memory_pool().used_bytes()

    def tick(self):
        with self._device:
            event = self._cupy.cuda.Event()
            event.record(self._main())
        return event

    def seconds(self, start, end):
        end.synchronize()
        return self._cupy.cuda.get_elapsed_time(start, end) / 1000

    def total(self):
        with self._device:
            _, total = self._runtime.memGetInfo()
            return min(total, self._cupy.get_default_memory_pool().get_limit() or total)

    def bus(self):
        if self._rates is None:
            slots, roots = zip(*[(self.take(_PROBE), self._cupy.cuda.alloc(_PROBE).mem) for _ in range(2)], strict=True)
            took = [self._times(slots, roots, size) for size in (_PROBE, _PROBE, 512, 512)]  # each one warms up
            latency = max(took[3])
            out, back = (_PROBE / max(seconds - latency, 1e-9) for seconds in took[1])
            self._rates = out, back, latency
            for slot in slots:
                self.give(slot)
        return self._rates

    def _times(self, slots, roots, size):
        """Returns the seconds of a copy out and of one back at the same time."""
        (to, source), (target, origin), events = slots, roots, []
        to, source, target, origin = to.memory.ptr, source.memory.ptr, target.ptr, origin.ptr
        runtime = self._runtime
        with self._device:
            self._fork.record(self._main())
            for stream, *copy in (
                (self._out, to, origin, size, runtime.memcpyDeviceToHost),
                (self._back, target, source, size, runtime.memcpyHostToDevice),
            ):
                stream.wait_event(self._fork)
                events.append([self._cupy.cuda.Event() for _ in range(2)])
                events[-1][0].record(stream)
                runtime.memcpyAsync(*copy, stream.ptr)
                events[-1][1].record(stream)
        return [self.seconds(*pair) for pair in events]

    def close(self):
        with self._device:
            for stream in (self._out, self._back):
                stream.synchronize()
        self.trim()


class _Mark:
    """The end of a copy.

    Args:
        event: event of CUDA.
        stream: stream of the copy.
        round: object that stays the same until the main stream waits for all copies.
    """

    __slots__ = ("event", "round", "stream")

    def __init__(self, event, stream, round):
        self.event, self.stream, self.round = event, stream, round


class _Slot:
    """Pinned memory.

    Args:
        memory: memory of CuPy.
        capacity: its size in bytes.
        size: bytes that are in use.

    Attributes:
        last: mark of the last copy to or from it, or ``None``.
        is_in_graph: whether copies of a CUDA graph use it.
    """

    def __init__(self, memory, capacity, size):
        self.memory, self.capacity, self.size = memory, capacity, size
        self.last, self.is_in_graph = None, False
        _pinned["bytes"] += capacity
        weakref.finalize(self, _pinned.subtract, {"bytes": capacity}).atexit = False


class _Token:
    """A token of memory; see :meth:`PinnedCopies.token_of`."""

    def __init__(self, ptr, size):
        self.ptr, self.size = ptr, size
