"""Counting calls of the CUDA driver: names, a stand-in for CUPTI that is compiled here, and a GPU."""

import contextlib
import ctypes
import shutil
import subprocess

import pytest

from benchmarks import cupti
from benchmarks.cupti import Calls
from tests import ROOT

pytestmark = pytest.mark.slow

SOURCE = ROOT / "tests" / "stand_ins" / "fake_cupti.c"


KIND_NAMES = [
    ("cuLaunchKernel cuLaunchKernelEx_ptsz cuLaunchCooperativeKernelMultiDevice", "launches"),
    ("cuGraphLaunch_ptsz", "graph_launches"),
    ("cuCtxSynchronize_v2 cuStreamSynchronize_ptsz", "syncs"),
    ("cuMemcpyHtoD_v2_ptds cuMemcpyDtoH_v2 cuMemcpy3D_v2 cuMemcpy", "syncs"),
    ("cuMemcpyHtoDAsync_v2_ptsz cuMemcpyDtoHAsync_v2 cuMemcpyDtoD_v2 cuMemcpy3DPeer_ptds", None),
    ("cuLaunchHostFunc_v2 cuGraphAddMemcpyNode cuGraphKernelNodeSetParams_v2 cuEventQuery cuMemFree_v2", None),
]


@pytest.mark.parametrize(("names", "kind"), KIND_NAMES)
def test_kinds(names, kind):
    assert {cupti.kind_of(name) for name in names.split()} == {kind}


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """The only place with a CUPTI, of a CUDA toolkit in which there is none yet."""
    monkeypatch.setattr(cupti.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(cupti, "_SONAMES", ())
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    folder = tmp_path / "extras" / "CUPTI" / "lib64"
    folder.mkdir(parents=True)
    cupti._load.cache_clear()
    yield folder
    cupti._load.cache_clear()


@pytest.fixture
def driver(toolkit):
    """The stand-in; ``fake_call(name)`` is a call of the driver. Beside it lies what is older, and no library."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the stand-in for CUPTI cannot be compiled")
    path = toolkit / "libcupti.so.13"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", SOURCE, "-o", path], check=True)
    (toolkit / "libcupti.so.12").write_text("no library")
    library = ctypes.CDLL(path)
    library.fake_call.argtypes = [ctypes.c_char_p]
    return library


def _call(driver, *names):
    return [driver.fake_call(name.encode()) for name in names]


def test_calls_count_once_each_and_inside_of_the_block_only(driver):
    assert _call(driver, "cuLaunchKernel") == [0]
    for number in (3, 1):
        with cupti.counting() as calls:
            _call(driver, *["cuLaunchKernel"] * number, "cuLaunchKernelEx_ptsz", "cuLaunchCooperativeKernel")
            _call(driver, "cuGraphLaunch", "cuGraphLaunch_ptsz", "cuStreamSynchronize", "cuEventSynchronize")
            _call(driver, "cuCtxSynchronize_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpyDtoH_v2")
            assert _call(driver, "cuInit", "cuMemAlloc_v2", "cuLaunchHostFunc") == [0] * 3  # are not even asked for
        assert calls == Calls(launches=2 + number, graph_launches=2, syncs=5)
        assert _call(driver, "cuLaunchKernel") == [0]


def test_only_one_can_count_and_after_an_exception_nothing_is_left(driver):
    with contextlib.suppress(ZeroDivisionError), cupti.counting() as calls:
        why_not = cupti.why_not()
        _call(driver, "cuLaunchKernel")
        raise ZeroDivisionError
    found = "cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
    assert (why_not, calls) == (f"CUPTI does not work here: {found}", Calls(launches=1))
    assert cupti.why_not() == ""
    failing = ctypes.c_int.in_dll(driver, "fake_failing")
    failing.value = 1
    assert cupti.why_not() == "CUPTI does not work here: cuptiEnableCallback: CUPTI_ERROR_UNKNOWN (999)"
    failing.value = 0
    assert cupti.why_not() == ""


def test_without_cupti_one_line_says_how_to_get_it(toolkit):
    assert cupti.why_not().startswith("libcupti.so of CUDA is missing: pip install nvidia-cuda-cupti ")
    (toolkit / "libcupti.so.13").write_text("no library")
    assert f"is missing ({toolkit / 'libcupti.so.13'}: " in cupti.why_not()


@pytest.mark.gpu
def test_on_a_gpu():
    """An operation is a launch, a read waits, and a graph is one launch."""
    if reason := cupti.why_not():
        pytest.skip(f"nothing can be counted: {reason}")
    import cupy

    x = cupy.zeros(8, cupy.float32)
    y = cupy.add(x, 1)  # compiled
    y.get()
    with cupti.counting() as launched:
        cupy.add(x, 1, out=y)
    with cupti.counting() as read:
        y.get()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(3):
            cupy.add(x, 1, out=y)
        graph = stream.end_capture()
        graph.launch()
        with cupti.counting() as waited:
            stream.synchronize()
        with cupti.counting() as replayed:
            graph.launch()
        stream.synchronize()
    assert launched == Calls(launches=1)
    assert (read.launches, read.syncs > 0) == (0, True)
    assert waited == Calls(syncs=1)
    assert replayed == Calls(graph_launches=1)
