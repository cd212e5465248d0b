"""What cuDNN's run time asks of CuPy: on a stand-in for its module, and on a device."""

import contextlib
import ctypes
import sys
import types

import numpy as np
import pytest

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import cupy_device as device_module
from mixprec.backends.cudnn import difference, settings
from mixprec.backends.cudnn.cupy_device import CupyDevice
from mixprec.backends.geometry import Convolution
from mixprec.backends.launch import text_of
from tests.backends.cudnn.operations import batch_norm, conv_fprop
from tests.optimizer.batch.test_cubin import ARCHITECTURES, compiler_for


class FakeCupy:
    """The parts of CuPy that are used, with a log of what happens on the stream."""

    def __init__(self):
        self.log = []
        self.clock = 0.0
        self.stream = types.SimpleNamespace(
            ptr=5, is_capturing=lambda: False, synchronize=lambda: self.log.append("synchronize")
        )
        properties = {"name": b"NVIDIA H200", "major": 9, "minor": 0}
        runtime = types.SimpleNamespace(
            getDeviceProperties=lambda number: properties,
            driverGetVersion=lambda: 13000,
            memcpyDeviceToDevice=3,
            memcpyDeviceToHost=2,
            memsetAsync=lambda *arguments: self.log.append(("fill", *arguments)),
            memcpy=self.memcpy,
            memcpyAsync=lambda *arguments: self.log.append(arguments),
        )
        self.cuda = types.SimpleNamespace(
            Device=lambda number: contextlib.nullcontext(number),
            runtime=runtime,
            get_current_stream=lambda: self.stream,
            Event=lambda: FakeEvent(self),
            get_elapsed_time=lambda first, last: last.time - first.time,
            alloc=lambda size: types.SimpleNamespace(ptr=256, size=size),
        )

    def memcpy(self, target, source, size, kind):
        """As if each thread of the kernel had found a difference of 1, a scale of 2, and one odd element."""
        assert (source, kind) == (256, 2)
        self.log.append(("read", size))
        ctypes.memmove(target, np.tile(np.float32([1, 2, 1]), size // 12).tobytes(), size)


class FakeEvent:
    def __init__(self, cupy):
        self._cupy, self.time = cupy, None

    def record(self, stream):
        assert stream is self._cupy.stream
        self._cupy.log.append("event")
        self.time = self._cupy.clock

    def synchronize(self):
        self._cupy.log.append("wait")


class FakeLauncher:
    threads = 256

    def __init__(self, number):
        self.log = []

    def compile(self, source, names):
        return {name: name for name in names}

    def launch(self, kernel, blocks, arguments):
        self.log.append((kernel, blocks))


@pytest.fixture
def cupy(monkeypatch):
    found = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", found)
    monkeypatch.setattr(device_module, "CupyLauncher", FakeLauncher)
    return found


def test_a_device_says_what_measurements_depend_on(cupy):
    device = CupyDevice(0)
    assert (device.name, device.capability, device.driver) == ("NVIDIA H200", 90, 13000)
    assert (device.stream(), device.capturing(), device.allocate(7).size) == (5, False, 7)


def test_bytes_are_copied_on_the_current_stream(cupy):
    CupyDevice(0).copy(512, 514, 30)
    assert cupy.log == [(512, 514, 30, 3, 5)]


def test_memory_is_filled_on_the_current_stream(cupy):
    CupyDevice(0).fill(512, 0xFF, 30)
    assert cupy.log == [("fill", 512, 0xFF, 30, 5)]


def test_arrays_are_compared_by_a_kernel_and_one_read(cupy):
    device = CupyDevice(0)
    device._launcher.log = cupy.log
    threads = 256 * 256
    assert device.difference(512, 1024, 7, "float16") == (1.0, 2.0, threads)
    assert cupy.log == [("difference", 256), "synchronize", ("read", 12 * threads)]


def test_functions_are_timed_behind_a_kernel_that_keeps_the_device_busy(cupy):
    device = CupyDevice(0)
    device._launcher.log = cupy.log

    def taking(milliseconds):
        def function():
            cupy.clock += milliseconds
            cupy.log.append(milliseconds)

        return function

    assert device.times([taking(2.0), taking(0.5)]) == [2.0, 0.5]
    assert cupy.log == [("spin", 1), "event", 2.0, "event", 0.5, "event", "wait"]


@pytest.mark.cupy
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["spin", "difference"])
def test_the_kernels_that_measuring_needs_compile(architecture, name):
    source = difference.source() if name == "difference" else text_of("mixprec.backends", "spin.cu")
    log = compiler_for()(source, architecture)
    assert f"{name}' for '{architecture}'" in log
    assert "warning" not in log


# On a device

X, W = (8, 14, 14, 64), (32, 3, 3, 64)
CONV = conv_fprop(X, W, Convolution(pad=(1, 1)), "float16")


def run_on_gpu(context, operation, seed=0):
    cupy = pytest.importorskip("cupy")
    random = np.random.RandomState(seed)
    inputs = {t.name: cupy.asarray(random.uniform(0.5, 1, t.shape).astype(t.dtype)) for t in operation.inputs}
    outputs = {t.name: cupy.zeros(t.shape, t.dtype) for t in operation.outputs}
    context.plan(operation).run(*(array.data.ptr for array in (*inputs.values(), *outputs.values())))
    return {name: array.get() for name, array in outputs.items()}


@pytest.fixture
def context():
    from mixprec.backends.cudnn.context import CudnnContext

    return CudnnContext(0)


@pytest.mark.gpu
def test_the_clock_of_the_device_sees_what_takes_longer():
    import cupy

    small, large = (cupy.ones(size, np.float32) for size in (2**10, 2**27))
    short, long = np.median([CupyDevice(0).times([lambda: small.fill(1), lambda: large.fill(1)]) for _ in range(5)], 0)
    assert 0 < short < long


@pytest.mark.gpu
@pytest.mark.parametrize("operation", [CONV, batch_norm(X, "float16", relu=True)], ids=["conv", "batch norm"])
def test_every_way_to_choose_an_engine_gives_the_same_result(context, operation, tmp_path):
    results = []
    for autotune in settings.AUTOTUNE:
        settings.configure(autotune=autotune, cache=tmp_path)
        results.append(run_on_gpu(context, operation))
        assert context.plan(operation).engine.startswith("eng")
    for found in results[1:]:
        for name, array in found.items():
            # Both round float32 sums of 576 products, or of 1,568 elements, once to the output's dtype.
            rtol = 2.0**-10 if array.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(array.astype(float), results[0][name].astype(float), rtol, atol=1e-4)
    assert {path.suffix for path in tmp_path.iterdir()} >= {".json", ".lock"}


@pytest.mark.gpu
def test_an_engine_that_was_compiled_by_another_computes_the_same(tmp_path, caplog):
    from mixprec.backends.cudnn.context import CudnnContext

    settings.configure(cache=tmp_path, deterministic=True)
    operation = batch_norm(X, "float16", relu=True)
    first, later = CudnnContext(0), CudnnContext(0)
    expected = run_on_gpu(first, operation)
    for name, array in run_on_gpu(later, operation).items():
        np.testing.assert_array_equal(array, expected[name])
    plan = later.plan(operation)
    assert plan._place[0] is not plan._engines.graph
    assert not caplog.records


@pytest.mark.gpu
def test_a_captured_plan_replays_and_one_that_is_new_is_an_error(context):
    import cupy

    x, w = cupy.ones(X, np.float16), cupy.ones(W, np.float16)
    y = cupy.zeros((*X[:3], W[0]), np.float16)
    addresses = [array.data.ptr for array in (x, w, y)]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        context.plan(CONV).run(*addresses)
        stream.begin_capture()
        context.plan(CONV).run(*addresses)
        with pytest.raises(CaptureError, match="is not built yet"):
            context.plan(batch_norm(X, "float16"))
        graph = stream.end_capture()
        y.fill(0)
        graph.launch()
        stream.synchronize()
    assert float(y[0, 7, 7, 0]) == 9 * 64
