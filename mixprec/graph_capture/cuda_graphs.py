"""CUDA graphs of one device, through CuPy: work is captured once, and then launched repeatedly as a whole.

:class:`~mixprec.graph_capture.captured.Captured` calls :func:`graphs_of` in each call.
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
    """Returns the object that captures work on the device of an array, or ``None`` for NumPy arrays.

    This is the only :class:`CupyGraphs` of its device. For an array of a simulated device it is the attribute
    ``graphs`` of the primitives that were given to :func:`mixprec.backends.register`.
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
    """Captures graphs on a stream of its own. All graphs of a device share it, so they never run concurrently.

    Args:
        device_id: number of the CUDA device.

    Attributes:
        side_stream: :class:`~mixprec.backends.wgrad_stream.SideStream` with this stream as the first one.
    """

    def __init__(self, device_id):
        import cupy  # not at the top: mixprec also runs without CuPy

        self._cupy = cupy
        self._device = cupy.cuda.Device(device_id)
        self._launcher = CupyLauncher(device_id)
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._before, self._after = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
            self.side_stream = SideStream(_Streams(cupy, self._stream))
        self._graphs = weakref.WeakSet()
        self._pools = []  # pools of graphs; a pool outlives its graph while arrays use it

    @property
    def pool_bytes(self):
        """Bytes of memory that all graphs on the device own, in use or not."""
        with self._device:
            return sum(pool.total_bytes() for pool in self._pools)

    @contextlib.contextmanager
    def on_stream(self):
        """A context in which work goes to the stream on which graphs are captured and launched.

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
        """Captures the device work of a function; called inside of :meth:`on_stream`.

        The device runs none of it. Garbage collection is off meanwhile, as it might destroy objects of other streams.
        New memory belongs to the graph alone: memory that is freed during the capture must not be used for anything
        else, as each launch writes to it.

        Args:
            function: function without arguments.

        Returns:
            ``(graph, result)``: an object whose ``launch()`` runs everything, and the result of the function.

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
                    with contextlib.suppress(Exception):  # the capture is known to be broken
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
            pool.set_limit(size=0)  # with a limit, the pool would free memory that the graph writes to later
        self._pools.append(pool)
        return pool

    def _allocate(self, size):
        """Allocates memory for the pool of a graph.

        Raises:
            CaptureError: memory has run out. On CuPy's own exception the pool would free memory that the graph has
                released, but writes to later.
        """
        cuda = self._cupy.cuda
        try:
            return cuda.MemoryPointer(cuda.Memory(size), 0)
        except cuda.runtime.CUDARuntimeError as error:
            raise CaptureError(f"there is not enough memory for a CUDA graph: {error}") from error

    @contextlib.contextmanager
    def watching(self):
        """A context in which new memory of this thread is recorded in the device log."""
        cuda = self._cupy.cuda
        allocate = cuda.get_allocator()

        def recorded(size):
            memory = allocate(size)
            record("memory", "new", memory.ptr, size)
            return memory

        with cuda.using_allocator(recorded):  # a memory hook would see only memory from pools
            yield

    def empty_like(self, array):
        """Returns a new uninitialized array on the device with the shape, dtype and memory order of another array.

        Args:
            array: NumPy or CuPy array.
        """
        with self._device:
            return shaped(self._cupy.empty(array.size, array.dtype), array)

    def copy(self, source, target):
        """Copies a NumPy or CuPy array into an array from :meth:`empty_like`; the host does not wait for the device.

        For a dense array on the device this is a single copy, whatever the order of its axes.
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
        """Waits until all launched graphs are done."""
        self._stream.synchronize()

    def release(self):
        """Frees device memory: unused memory of eager work in CuPy's pool, and memory of dropped graphs.

        The host waits for the graphs. Memory that arrays still use stays until the next call.
        """
        self.sync()
        used = {id(graph.pool) for graph in self._graphs}
        with self._device:
            self._cupy.get_default_memory_pool().free_all_blocks()
            for pool in self._pools:
                if id(pool) not in used:
                    pool.free_all_blocks()  # CuPy 14 leaks the memory if a pool is dropped without this
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
        stream: the stream on which it was captured.
        pool: :class:`cupy.cuda.MemoryPool` that provides its memory.

    Attributes:
        pool: the memory pool.
    """

    def __init__(self, graph, stream, pool):
        self._graph, self._stream, self.pool = graph, stream, pool

    def launch(self):
        """Runs the captured work with the same addresses and numbers; the host does not wait."""
        self._graph.launch(self._stream)
