"""A stand-in for a CUDA device with CUDA graphs, which compute on the host what was captured.

Kernels are compiled by g++, graphs of cuDNN are computed by ``fake_cudnn``, and functions of arrays by NumPy, see
:mod:`tests.stand_ins.graph_array`: now, or in each launch of the graph that is being captured.
"""

import contextlib
import gc
import types
import weakref

import numpy as np

from benchmarks.recording_device.arrays import conversions_stay
from benchmarks.recording_device.launcher import ArrayLauncher
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cublas import Cublas
from mixprec.backends.cuda import Cuda
from mixprec.backends.cuda.matrix_context import MatrixContext
from mixprec.backends.cudnn.context import CudnnContext
from mixprec.backends.launch import Kernel, record_launch
from mixprec.backends.wgrad_stream import SideStream
from tests.stand_ins import fake_cudnn, graph_array, graph_work
from tests.stand_ins.copies_on_host import HostCopies
from tests.stand_ins.cudnn_host import HostDevice
from tests.stand_ins.fake_cublas import FakeCublas
from tests.stand_ins.graph_array import GraphArray
from tests.stand_ins.host_launch import HostLauncher

_STREAM, _SECOND = 7, 8


class GraphLauncher(HostLauncher):
    """Launches now or with a graph; see :class:`~tests.stand_ins.host_launch.HostLauncher`."""

    array_type = GraphArray
    holds = ArrayLauncher.holds  # numbers, too

    def compile(self, source, names):
        return {name: Kernel(name, function) for name, function in super().compile(source, names).items()}

    def launch(self, kernel, blocks, arguments):
        record_launch(kernel.name, blocks, arguments)
        graph_work.do(super().launch, kernel.function, blocks, tuple(arguments))

    def upload(self, source, target):
        if graph_work.is_capturing():
            raise CaptureError("values of the host would be copied while a CUDA graph captures: they would be frozen")
        graph_work.upload("table")
        target.view(np.ndarray)[: source.nbytes] = source
        self.uploads.append(source.nbytes)


class _Device(HostDevice):
    def allocate(self, size):
        self.allocated.append(size)
        memory = graph_array.new((size,), np.uint8)
        return types.SimpleNamespace(ptr=memory.ctypes.data, memory=memory)

    def copy(self, target, source, size):
        graph_work.do(super().copy, target, source, size)

    def fill(self, address, byte, size):
        graph_work.do(super().fill, address, byte, size)


class _Pygraph(fake_cudnn.pygraph):
    def execute_plan_at_index(self, pack, workspace, index, handle=None):
        graph_work.do_in(workspace, super().execute_plan_at_index, dict(pack), workspace, index, handle)


class GraphCuda(Cuda):
    """The primitives of :class:`~tests.stand_ins.graph_array.GraphArray`."""

    def __init__(self):
        frontend = types.SimpleNamespace(**{**vars(fake_cudnn), "pygraph": _Pygraph})
        device = _Device()
        matrices = MatrixContext(0, cublas=Cublas(FakeCublas(device, graph_work.do)), device=device)
        super().__init__(GraphLauncher(), CudnnContext(0, frontend=frontend, device=device), matrices)
        self.graphs = HostGraphs(device)
        self.copies = HostCopies

    def nccl_of(self, communicator):
        """Returns the :class:`~tests.stand_ins.nccl_on_host.HostNccl` of a communicator: its attribute ``nccl``."""
        return communicator.nccl


class HostGraphs:
    """Has the interface of :class:`mixprec.graph_capture.cuda_graphs.CupyGraphs`.

    Args:
        device: :class:`~tests.stand_ins.cudnn_host.HostDevice`, of whose streams number 7 is the one that captures.

    Attributes:
        launches: number of launches of graphs.
        copies: number of arrays that :meth:`copy` has copied.
        seeds: iterator over seeds of the orders in which graphs are launched, see
            :meth:`~tests.stand_ins.graph_work.Work.run`; ``None`` for the two that take turns.
        side_stream: :class:`~mixprec.backends.wgrad_stream.SideStream`; its second stream is number 8.
    """

    def __init__(self, device):
        self._device = device
        self.side_stream = SideStream(_Streams(device))
        self._graphs = weakref.WeakSet()
        self._pools = []  # of graphs, also of those that are gone, as long as something in them is in use
        self.launches = self.copies = 0
        self.seeds = None

    @property
    def pool_bytes(self):
        return sum(pool.bytes for pool in self._pools)

    @contextlib.contextmanager
    def on_stream(self):
        if self._device.stream() == _STREAM:
            yield
            return
        with self._device.on(_STREAM), conversions_stay():
            yield

    def capture(self, function):
        assert self._device.stream() == _STREAM, "outside of on_stream()"
        collects = gc.isenabled()
        gc.collect()
        self.release()
        gc.disable()
        try:
            pool = graph_work.NanPool()
            self._pools.append(pool)
            with self._device.on(_STREAM, capturing=True), graph_work.capturing(pool) as work:
                result = function()
        finally:
            if collects:
                gc.enable()
        graph = HostGraph(self, work, pool)
        self._graphs.add(graph)
        return graph, result

    @contextlib.contextmanager
    def watching(self):
        with graph_work.watching():
            yield

    def empty_like(self, array):
        return np.empty_like(graph_array.array(array))

    def copy(self, source, target):
        assert not graph_work.is_capturing()
        target.view(np.ndarray)[...] = source
        self.copies += 1

    def sync(self):
        """There is nothing to wait for."""

    def release(self):
        """Forgets the memory of graphs that are gone, but for what arrays hold."""
        used = {id(graph.pool) for graph in self._graphs}
        for pool in self._pools:
            if id(pool) not in used:
                pool.free_all_blocks()
        self._pools = [pool for pool in self._pools if id(pool) in used or pool.bytes]


class _Streams:
    """Has the interface of what :class:`mixprec.backends.wgrad_stream.SideStream` wants."""

    def __init__(self, device):
        self._device = device

    @contextlib.contextmanager
    def second(self):
        with self._device.on(_SECOND, capturing=self._device.capturing()), graph_work.on_second_stream():
            yield

    def fork(self):
        graph_work.wait(graph_work.SECOND, graph_work.record(graph_work.FIRST))

    def mark(self):
        return graph_work.record(graph_work.SECOND)

    def wait(self, event):
        graph_work.wait(graph_work.FIRST, event)


class HostGraph:
    """What :meth:`HostGraphs.capture` gives."""

    def __init__(self, graphs, work, pool):
        self._graphs, self._work, self.pool = graphs, work, pool

    def launch(self):
        assert self._graphs._device.stream() == _STREAM, "outside of on_stream()"
        seed = None if self._graphs.seeds is None else next(self._graphs.seeds)
        self._work.run(late=self._graphs.launches % 2 == 0, seed=seed)
        self._graphs.launches += 1
