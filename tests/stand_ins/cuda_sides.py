"""Where tests of the CUDA backend run: on the host's stand-ins everywhere, and on a GPU where there is one.

Both sides have the same interface, so that a test that was written without a GPU has been seen to work, and to fail.
"""

import contextlib
import ctypes
import functools
import gc
from unittest import mock

import numpy as np
import pytest

from mixprec.backends.cuda import Cuda
from mixprec.backends.cuda.candidates import WithoutCudnn
from mixprec.backends.cuda.matrix_context import MatrixContext
from mixprec.backends.cudnn.context import CudnnContext
from mixprec.backends.launch import CupyLauncher
from mixprec.base.cudnn_library import CudnnMissing
from tests.stand_ins import fake_cudnn
from tests.stand_ins.cuda_on_host import HostCuda, receive, send


def on_devices(small, large=()):
    """Parametrizes a test with ``side`` and ``case``, by name: small cases on both sides, large ones on a GPU only."""
    pairs = [("host", name) for name in small] + [("gpu", name) for name in (*small, *large)]
    params = [
        pytest.param(side, name, id=f"{side}-{name}", marks=[pytest.mark.gpu] if side == "gpu" else [])
        for side, name in pairs
    ]
    return pytest.mark.parametrize(("side", "case"), params, indirect=["side"])


both_sides = pytest.mark.parametrize("side", ["host", pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True)


class Side:
    """What both sides have.

    Attributes:
        cuda: the primitives, a :class:`~mixprec.backends.cuda.Cuda`.
        is_gpu: whether there is a device.
    """

    def need_cudnn(self):
        """Skips the test where there is no cuDNN."""
        if isinstance(self.cuda.cudnn, WithoutCudnn):
            pytest.skip(self.cuda.cudnn._reason)

    @contextlib.contextmanager
    def workspaces_of(self, byte):
        """For a while, the workspace of a plan is full of this byte whenever the plan runs; yields the sizes."""
        workspaces, sizes = self.cuda.cudnn._executor._workspaces, []
        address_of = workspaces.address

        def filled(stream, size):
            address = address_of(stream, size)
            if size:
                sizes.append(size)
                self.fill(address, byte, size)
            return address

        with mock.patch.object(workspaces, "address", filled):
            yield sizes


class OnHost(Side):
    """Kernels by g++, cuDNN's graphs by :mod:`tests.stand_ins.fake_cudnn`, products by ``fake_cublas``.

    Memory is NaN before it is written.
    """

    is_gpu = False
    send, receive = staticmethod(send), staticmethod(receive)

    def __init__(self):
        self.cuda = self.fresh()

    def fresh(self):
        """Returns primitives that have neither found nor built anything yet."""
        return HostCuda()

    def fill(self, address, byte, size):
        """Sets memory."""
        ctypes.memset(address, byte, size)

    def write(self, array, value):
        """Replaces the elements of an array."""
        array[...] = value

    def wait(self):
        """Waits for all streams."""

    def graph_of(self, cuda, step, *, warm=True):
        """Captures what ``step()`` launches, on a stream of its own, if ``warm`` after it has run there once.

        Returns:
            ``(launch, outputs)``: a function that launches the graph and waits, and what ``step()`` has returned.
        """
        launches, kept = [], []
        launcher, run_plan, empty = cuda.launcher, fake_cudnn.pygraph.execute_plan_at_index, cuda.launcher.empty

        def noting(function):
            return lambda *arguments: launches.append(functools.partial(function, *arguments))

        def kept_empty(*arguments):
            kept.append(empty(*arguments))
            return kept[-1]

        with cuda.cudnn._device.on(7):
            if warm:
                step()
            with (
                cuda.cudnn._device.on(7, capturing=True),
                mock.patch.object(launcher, "launch", noting(launcher.launch)),
                mock.patch.object(launcher, "empty", kept_empty),
                mock.patch.object(fake_cudnn.pygraph, "execute_plan_at_index", noting(run_plan)),
                mock.patch.object(cuda.cublas, "do", noting(cuda.cublas.do)),
            ):
                outputs = step()

        def launch():
            assert kept  # memory of the graph
            for function in launches:
                function()

        return launch, outputs


class OnGpu(Side):
    """The first GPU. CuPy's pool gives out memory that is NaN before it is written.

    If CuPy has been told to take memory from elsewhere that stays, see ``scripts/sanitize.py``.
    """

    is_gpu = True

    def __init__(self):
        import cupy

        self._cupy = cupy
        self._allocator = cupy.cuda.get_allocator()
        if self._allocator == cupy.get_default_memory_pool().malloc:
            cupy.cuda.set_allocator(self._filling(self._allocator))
        self.cuda = self.fresh()

    def close(self):
        """Gives CuPy its allocator back."""
        self._cupy.cuda.set_allocator(self._allocator)

    def fresh(self):
        """Returns primitives that have neither found nor built anything yet."""
        try:
            cudnn = CudnnContext(0)
        except CudnnMissing as error:
            cudnn = WithoutCudnn(str(error))
        return Cuda(CupyLauncher(0), cudnn, MatrixContext(0))

    def send(self, value, misaligned=False):
        """Copies arrays to the GPU, also those in tuples; ``None`` stays."""
        if value is None:
            return None
        if isinstance(value, tuple):
            copies = [self.send(part, misaligned) for part in value]
            return type(value)(*copies) if hasattr(value, "_fields") else tuple(copies)
        value = np.asarray(value)
        array = self._cupy.empty(value.size + 1, value.dtype)[int(misaligned) :][: value.size].reshape(value.shape)
        self.write(array, value)
        return array

    def receive(self, value):
        """Returns results as arrays of NumPy, also those in tuples; ``None`` stays."""
        if value is None:
            return None
        if isinstance(value, tuple):
            parts = [self.receive(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        assert isinstance(value, self._cupy.ndarray)
        assert value.flags.c_contiguous
        return value.get()

    def fill(self, address, byte, size):
        """Sets memory, on the current stream."""
        self._cupy.cuda.runtime.memsetAsync(address, byte, size, self._cupy.cuda.get_current_stream().ptr)

    def write(self, array, value):
        """Replaces the elements of an array, and waits."""
        array.set(np.ascontiguousarray(value, array.dtype).reshape(array.shape))
        self._cupy.cuda.get_current_stream().synchronize()

    def wait(self):
        """Waits for all streams."""
        self._cupy.cuda.Device().synchronize()

    def graph_of(self, cuda, step, *, warm=True):
        """See :meth:`OnHost.graph_of`."""
        cupy = self._cupy
        self.wait()  # a stream that does not block does not wait for the others
        stream = cupy.cuda.Stream(non_blocking=True)
        pool = cupy.cuda.MemoryPool()  # what the graph has freed must not be given to others
        with stream, cupy.cuda.using_allocator(self._filling(pool.malloc)):
            if warm:
                step()
            stream.synchronize()
            gc.collect()
            gc.disable()  # nothing that belongs to another stream may be destroyed meanwhile
            stream.begin_capture()
            try:
                outputs = step()
            finally:
                graph = stream.end_capture()
                gc.enable()

        def launch():
            assert pool is not None
            graph.launch(stream)
            stream.synchronize()

        return launch, outputs

    def _filling(self, allocate):
        def allocate_filled(size):
            memory = allocate(size)
            if size:
                self.fill(memory.ptr, 0xFF, size)
            return memory

        return allocate_filled
