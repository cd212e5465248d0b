"""Where tests of captured training run: on a stand-in device with graphs everywhere, and on a GPU where there is one.

Both sides have the same interface, so that a test that was written without a GPU has been seen to work, and to fail.
"""

import contextlib
import gc
import sys
import types
from unittest import mock

import numpy as np
import pytest

from mixprec import backends
from mixprec.backends.cudnn import settings as cudnn
from mixprec.graph_capture import origin
from mixprec.graph_capture.cuda_graphs import graphs_of
from tests.stand_ins import graph_array, graph_work
from tests.stand_ins.cuda_sides import OnGpu
from tests.stand_ins.graph_array import GraphArray
from tests.stand_ins.graph_on_host import GraphCuda


def _waits(*_, **__):
    raise AssertionError("the host waits for the device")


class Host:
    """The stand-in device of :mod:`tests.stand_ins.graph_on_host`, which a fixture has made known to mixprec."""

    is_gpu = False
    send, send_link, send_states = map(staticmethod, (graph_array.array, graph_array.send, graph_array.send_states))
    receive = staticmethod(graph_array.receive)

    @property
    def graphs(self):
        """Those of the device."""
        return backends._OTHERS[GraphArray].graphs

    def eagerly(self):
        """A context for steps of Chainer's own: on the stand-in its conversions work on the stream of graphs only."""
        return self.graphs.on_stream()

    def without_reads(self):
        """A context in which it is an error if the host reads from the device."""
        return mock.patch.object(GraphArray.memory, "read", _waits)

    @contextlib.contextmanager
    def peak(self):
        """Gives an object whose ``bytes`` are those that were in use at most, for graphs too, beside those before."""
        peak, allocate, before = types.SimpleNamespace(bytes=0), graph_work.memory, self._used()

        def memory(size):
            block = allocate(size)
            peak.bytes = max(peak.bytes, self._used() - before)
            return block

        with mock.patch.object(graph_work, "memory", memory):
            yield peak

    def _used(self):
        return graph_work.eager_bytes() + self.graphs.pool_bytes


HOST = Host()

# The device waits here for the host, but not for ever.
_HOLD = r"""
__device__ unsigned long long now() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

extern "C" __global__ void hold(const volatile int* released, unsigned long long nanoseconds) {
    const unsigned long long start = now();
    while (!*released && now() - start < nanoseconds) {
    }
}
"""
_HELD = 10**9  # nanoseconds: a thousand times what the host takes for a launch


class Gpu(OnGpu):
    """The first GPU, with the primitives that CuPy's arrays have."""

    def __init__(self):
        super().__init__()
        cupy = self._cupy
        self._hold = cupy.RawKernel(_HOLD, "hold")
        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self._released = np.frombuffer(self._memory, np.int32, 1)

    def fresh(self):
        """Returns the primitives of the first GPU, those that links use."""
        return backends.cuda.primitives_of(0)

    @property
    def graphs(self):
        """Those of the device."""
        return graphs_of(self._cupy.empty(0))

    def send_link(self, link):
        """Moves a link to the GPU."""
        return link.to_device("@cupy:0")

    def send_states(self, link):
        """Does nothing: Chainer sends what came from a file where the parameters are."""

    def receive(self, value):
        """Returns a copy on the host of an array in any memory order."""
        return value.get()

    def eagerly(self):
        """A context for steps of Chainer's own: on the current stream."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def without_reads(self):
        """See :meth:`Host.without_reads`; all of CuPy's reads and waits are seen."""
        cuda = self._cupy.cuda
        with (
            mock.patch("cupy._core.syncdetect._declare_synchronize", _waits),
            mock.patch.object(cuda.Event, "synchronize", _waits),
            mock.patch.object(cuda.stream._BaseStream, "synchronize", _waits),
        ):
            yield

    @contextlib.contextmanager
    def peak(self):
        """See :meth:`Host.peak`; of CuPy's pool the bytes in use count, of graphs all that they have."""
        peak, pool, graphs = types.SimpleNamespace(bytes=0), self._cupy.get_default_memory_pool(), self.graphs
        graphs.release()

        def used():
            return pool.used_bytes() + graphs.pool_bytes

        before = used()

        class Peak(self._cupy.cuda.MemoryHook):
            name = "capture_sides.Peak"

            def malloc_postprocess(self, **_):
                peak.bytes = max(peak.bytes, used() - before)

        with Peak():
            yield peak

    @contextlib.contextmanager
    def held(self):
        """Inside of the block the device does nothing of what the current stream is asked, for a second.

        Gives a function that says whether that second is not over: nothing has waited for the device so far.
        """
        self._released[0] = 0
        arguments = np.uint64(self._memory.ptr), np.uint64(_HELD)
        self._hold((1,), (1,), arguments)
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        try:
            yield lambda: not event.done
        finally:
            self._released[0] = 1
            event.synchronize()


@pytest.fixture(scope="module")
def device():
    """The primitives of the stand-in."""
    return GraphCuda()


@pytest.fixture
def host(device, monkeypatch):
    monkeypatch.setitem(backends._OTHERS, GraphArray, device)
    # Chainer takes this device for the host.
    monkeypatch.setattr(sys.modules["mixprec.backends.dropout_state"], "_primitives", lambda _: device)
    monkeypatch.setattr(origin, "LIBRARIES", origin.LIBRARIES | {"tests.stand_ins", "benchmarks.recording_device"})
    cudnn.configure(deterministic=True)
    return HOST


@pytest.fixture(scope="module")
def gpu_of_module():
    gpu = Gpu()
    yield gpu
    gpu.close()


@pytest.fixture
def gpu(gpu_of_module):
    gpu_of_module.need_cudnn()
    cudnn.configure(deterministic=True)
    yield gpu_of_module
    gc.collect()
    gpu_of_module.graphs.release()


@pytest.fixture
def side(request):
    """The host or the GPU, as the parameter says, with engines that give the same bits each time."""
    return request.getfixturevalue(request.param)
