"""How fast a machine copies and multiplies: what is timed, and what is made of the times."""

import itertools
import types

import chainer
import ml_dtypes
import numpy as np
import pytest

from benchmarks import compared_optimizers, gpu, rates

pytestmark = pytest.mark.slow

DTYPES = "float32", "tf32", "float16", "bfloat16"


@pytest.fixture
def small_cpu(monkeypatch):
    """A clock on which everything takes a second, and small arrays; gives the shapes that are multiplied."""
    multiplied, matmul = [], np.matmul

    def counting(a, b, out):
        multiplied.append((a.shape, b.shape, a.dtype))
        return matmul(a, b, out=out)

    clock = itertools.count()
    monkeypatch.setattr(compared_optimizers, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(rates, "_COPIED", 1000)
    monkeypatch.setattr(rates, "_MULTIPLIED", 16)
    monkeypatch.setattr(np, "matmul", counting)
    return multiplied


def test_a_cpu_copies_and_multiplies_in_float32(small_cpu):
    found = rates.measure("@numpy", repeats=3)
    product = 2.0 * 16**3
    assert found == rates.Rates(2000, dict.fromkeys(DTYPES, product))
    assert small_cpu == [((16, 16), (16, 16), np.float32)] * 4


class StubDevice:
    """A GPU on the host, on which 20 products take as many milliseconds as the dtype says, and 20 copies take 10.

    Args:
        dtypes: dict from the dtypes that it knows to milliseconds; what is rounded to TF32 takes an eighth.
        capability: its compute capability.
    """

    def __init__(self, dtypes, capability):
        self.milliseconds, self.freed, self.types = 0, 0, {"float32": 1, "float16": 1}
        self.device = types.SimpleNamespace(compute_capability=capability)

        def ones(shape, dtype):
            if np.dtype(dtype) not in dtypes:
                raise ValueError(f"Unsupported dtype {np.dtype(dtype)}")
            return np.ones(shape, dtype)

        def matmul(a, b):
            rounded = a.dtype == np.float32 and self.types["float32"] == 7
            self.milliseconds = dtypes[a.dtype] / (8 if rounded else 1)

        def zeros(shape, dtype):
            self.milliseconds = 10
            return np.zeros(shape, dtype)

        def free_all_blocks():
            self.freed += 1

        event = types.SimpleNamespace(record=lambda: None, synchronize=lambda: None)
        cuda = types.SimpleNamespace(Event=lambda: event, get_elapsed_time=lambda start, stop: self.milliseconds)
        pool = types.SimpleNamespace(free_all_blocks=free_all_blocks)
        self.xp = types.SimpleNamespace(ones=ones, matmul=matmul, zeros=zeros, empty_like=np.empty_like, cuda=cuda)
        self.xp.get_default_memory_pool = lambda: pool
        linalg = types.SimpleNamespace(COMPUTE_TYPE_TF32=7)
        self.xp._core = types.SimpleNamespace(get_compute_type=self.types.get, set_compute_type=self.set_compute_type)
        self.xp._core._routines_linalg = linalg

    def set_compute_type(self, dtype, compute_type):
        assert int(self.device.compute_capability) >= 80, "CuPy warns"
        assert dtype in self.types
        self.types[dtype] = compute_type

    def use(self):
        pass


def _measure_stub(monkeypatch, dtypes, capability="90"):
    device = StubDevice({np.dtype(dtype): milliseconds for dtype, milliseconds in dtypes.items()}, capability)
    monkeypatch.setattr(chainer, "get_device", lambda specifier: device)
    monkeypatch.setattr(gpu, "_COPIED", 1000)
    monkeypatch.setattr(gpu, "_MULTIPLIED", 10)
    found = rates.measure("@cupy:0", repeats=2)
    assert device.freed == 1
    assert device.types == {"float32": 1, "float16": 1}
    return found


def test_a_gpu_has_a_rate_for_each_dtype(monkeypatch):
    dtypes = {np.float32: 400, np.float16: 20, ml_dtypes.bfloat16: 40}
    found = _measure_stub(monkeypatch, dtypes)
    assert found.bandwidth == pytest.approx(2 * 1000 / 0.5e-3)
    seconds = {"float32": 20e-3, "tf32": 2.5e-3, "float16": 1e-3, "bfloat16": 2e-3}
    assert found.flops == pytest.approx({dtype: 2000 / each for dtype, each in seconds.items()})


def test_a_gpu_before_ampere_has_no_tf32(monkeypatch):
    found = _measure_stub(monkeypatch, {np.float32: 400, np.float16: 20}, "75")
    assert found.flops["tf32"] == found.flops["float32"] == pytest.approx(2000 / 20e-3)


def test_without_bfloat16_it_has_the_rate_of_float16(monkeypatch):
    found = _measure_stub(monkeypatch, {np.float32: 400, np.float16: 20})
    assert found.flops["bfloat16"] == found.flops["float16"] == pytest.approx(2000 / 1e-3)


@pytest.mark.gpu
def test_the_gpu_has_rates_and_its_memory_back():
    pool = chainer.get_device("@cupy:0").xp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    found = rates.measure("@cupy:0", repeats=2)
    assert pool.total_bytes() <= before
    assert 1e10 < found.bandwidth < 1e14
    assert 1e11 < found.flops["float32"] < found.flops["float16"] < 1e17
    assert found.flops["bfloat16"] > 1e11
    device = chainer.get_device("@cupy:0")
    if int(device.device.compute_capability) >= 80:
        assert found.flops["tf32"] > 2 * found.flops["float32"]
    a = device.xp.full((64, 64), 1 + 2**-20, "float32")  # TF32 has 10 bits
    assert abs(device.xp.matmul(a, a) / 64 - 1).min() > 2**-20
