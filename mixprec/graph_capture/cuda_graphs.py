"""CUDA graphs of one device, through CuPy: work is captured once, and then launched as a whole again and again.

:class:`~mixprec.graph_capture.captured.Captured` asks :func:`graphs_of` in each call.
"""

import contextlib
import functools
import gc
import itertools
import weakref

import chainer
import numpy as np

from mixprec.backends import registered
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.device_log import record
from mixprec.backends.launch import CupyLauncher
from mixprec.backends.memory import axes, shaped
from mixprec.backends.wgrad_stream import AHEAD, SideStream


def graphs_of(array):
    """Returns what captures work on the device of an array, or ``None`` if NumPy computes with it.

    That is the :class:`CupyGraphs` of its device, always the same one. For an array of a stand-in it is the attribute
    ``graphs`` of the primitives that :func:`mixprec.backends.register` was given.
    """
    stand_in = registered(array)
    if stand_in is not None:
        return stand_in.graphs
    device = chainer.backend.get_device_from_array(array)
    return _graphs(device.device.id) if device.xp.__name__ == "cupy" else None


@functools.cache
def _graphs(device_id):
    return CupyGraphs(device_id)


class CupyGraphs:
    """Captures on a stream of its own. All graphs of a device share it, so that no two of them run at the same time.

    Args:
        device_id: number of the CUDA device.

    Attributes:
        side_stream: :class:`~mixprec.backends.wgrad_stream.SideStream` with that stream as the first one.
    """

    def __init__(self, device_id):
        import cupy  # not at the top: mixprec runs without it

        self._cupy = cupy
        self._device = cupy.cuda.Device(device_id)
        self._launcher = CupyLauncher(device_id)
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._before, self._after = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
            self.side_stream = SideStream(_Streams(cupy, self._stream))
        self._graphs = weakref.WeakSet()
        self._pools = []  # of graphs, also of those that are gone, as long as there is something in them

    @property
    def pool_bytes(self):
        """Bytes of memory that all graphs on the device have, whether an array holds it or not."""
        with self._device:
            return sum(pool.total_bytes() for pool in self._pools)

    @contextlib.contextmanager
    def on_stream(self):
        """Inside of the block work goes to the stream on which graphs are captured and launched.

        It waits for earlier work on the caller's current stream, and later work there waits for it; the host does not
        wait.
        """
        with self._device:
            outer = self._cupy.cuda.get_current_stream()
            if outer == self._stream:
                yield
                return
            self._before.record(outer)
            self._stream.wait_event(self._before)
            try:
                with self._stream:
                    yield
            finally:
                self._after.record(self._stream)
                outer.wait_event(self._after)

    def capture(self, function):
        """Captures what a function asks of the device; inside of :meth:`on_stream`.

        The device runs nothing of it. Garbage is not collected meanwhile, as that might destroy objects of other
        streams. New memory belongs to the graph alone: what is freed on the way must not be used for anything else, as
        each launch writes there.

        Args:
            function: callable without arguments.

        Returns:
            ``(graph, result)``: an object whose ``launch()`` runs everything, and what the function has returned.

        Raises:
            RuntimeError: something cannot be captured. Exceptions of the function are passed on.
        """
        collects = gc.isenabled()
        gc.collect()
        self.release()
        gc.disable()
        try:
            pool = self._new_pool()
            with self._cupy.cuda.using_allocator(pool.malloc):
                self._stream.begin_capture()
                try:
                    result = function()
                except BaseException:
                    with contextlib.suppress(Exception):  # that the capture is broken is known
                        self._stream.end_capture()
                    raise
                captured = self._stream.end_capture()
        finally:
            if collects:
                gc.enable()
        captured.upload(self._stream)
        graph = Graph(captured, self._stream, pool)
        self._graphs.add(graph)
        return graph, result

    def _new_pool(self):
        pool = self._cupy.cuda.MemoryPool(self._allocate)
        with self._device:
            pool.set_limit(size=0)  # where there is one, the pool would give back what the graph writes into later
        self._pools.append(pool)
        return pool

    def _allocate(self, size):
        """Returns memory for the pool of a graph.

        Raises:
            CaptureError: there is none left. Of CuPy's own exception for that the pool would give back what the graph
                has freed so far, and writes into later.
        """
        cuda = self._cupy.cuda
        try:
            return cuda.MemoryPointer(cuda.Memory(size), 0)
        except cuda.runtime.CUDARuntimeError as error:
            raise CaptureError(f"there is not enough memory for a CUDA graph: {error}") from error

    @contextlib.contextmanager
    def watching(self):
        """Inside of the block new memory of this thread is recorded in the device log."""
        cuda = self._cupy.cuda
        allocate = cuda.get_allocator()

        def recorded(size):
            memory = allocate(size)
            record("memory", "new", memory.ptr, size)
            return memory

        with cuda.using_allocator(recorded):  # a hook would see memory from pools only
            yield

    def empty_like(self, array):
        """Returns a new array on the device, with anything in it, that lies in memory as another one does.

        Args:
            array: of NumPy or CuPy.
        """
        with self._device:
            return shaped(self._cupy.empty(array.size, array.dtype), array)

    def copy(self, source, target):
        """Copies an array of NumPy or CuPy into one of :meth:`empty_like`; the host does not wait for the device.

        From an array of the device without gaps that is one copy of memory, whatever the order of its axes.
        """
        if isinstance(source, np.ndarray):
            if source.nbytes:
                dense = np.ascontiguousarray(source.transpose(axes(target)))
                self._launcher.upload(dense.reshape(-1).view(np.uint8), target)
        else:
            with self._device:
                if source.dtype == target.dtype and source.transpose(axes(target)).flags.c_contiguous:
                    target.data.copy_from_device_async(source.data, source.nbytes)  # on the current stream
                else:
                    target[...] = source

    def sync(self):
        """Waits until all graphs that were launched are done."""
        self._stream.synchronize()

    def release(self):
        """Gives memory back to the device: what eager work has left in CuPy's pool, and graphs that are gone.

        The host waits for the graphs. What arrays still hold stays until the next time.
        """
        self.sync()
        used = {id(graph.pool) for graph in self._graphs}
        with self._device:
            self._cupy.get_default_memory_pool().free_all_blocks()
            for pool in self._pools:
                if id(pool) not in used:
                    pool.free_all_blocks()  # CuPy 14 does not, and loses the memory, if a pool is dropped
            self._pools = [pool for pool in self._pools if id(pool) in used or pool.total_bytes()]


class _Streams:
    """The stream of captured graphs, and a second one, for :class:`~mixprec.backends.wgrad_stream.SideStream`."""

    def __init__(self, cupy, first):
        self._first, self._second = first, cupy.cuda.Stream(non_blocking=True)
        self._fork = cupy.cuda.Event(disable_timing=True)
        self._marks = itertools.cycle([cupy.cuda.Event(disable_timing=True) for _ in range(AHEAD)])

    def second(self):
        return self._second

    def fork(self):
        self._fork.record(self._first)
        self._second.wait_event(self._fork)

    def mark(self):
        event = next(self._marks)
        event.record(self._second)
        return event

    def wait(self, event):
        self._first.wait_event(event)


class Graph:
    """A captured graph.

    Args:
        graph: :class:`cupy.cuda.Graph`.
        stream: on which it was captured.
        pool: :class:`cupy.cuda.MemoryPool` from which it has its memory.

    Attributes:
        pool: the same.
    """

    def __init__(self, graph, stream, pool):
        self._graph, self._stream, self.pool = graph, stream, pool

    def launch(self):
        """Runs everything once more, with the same addresses and numbers; the host does not wait."""
        self._graph.launch(self._stream)
