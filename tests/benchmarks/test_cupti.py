"""Counting calls of the CUDA driver: names, a stand-in for CUPTI that is compiled here, and a GPU."""

import ctypes
import shutil
import subprocess
import threading

import pytest

from benchmarks import cupti
from benchmarks.cupti import Calls, CuptiMissing
from tests import ROOT

pytestmark = pytest.mark.slow

SOURCE = ROOT / "tests" / "stand_ins" / "fake_cupti.c"


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("cuLaunchKernel", ("launches",)),
        ("cuLaunchKernelEx_ptsz", ("launches",)),
        ("cuLaunchCooperativeKernelMultiDevice", ("launches",)),
        ("cuLaunchHostFunc_v2", ()),
        ("cuGraphLaunch_ptsz", ("graph_launches",)),
        ("cuGraphAddMemcpyNode", ()),
        ("cuGraphKernelNodeSetParams_v2", ()),
        ("cuCtxSynchronize_v2", ("syncs",)),
        ("cuStreamSynchronize_ptsz", ("syncs",)),
        ("cuEventQuery", ()),
        ("cuMemcpyHtoDAsync_v2_ptsz", ("uploads",)),
        ("cuMemcpyHtoD_v2_ptds", ("uploads", "syncs")),
        ("cuMemcpyDtoH_v2", ("copies", "syncs")),
        ("cuMemcpyDtoHAsync_v2", ("copies",)),
        ("cuMemcpyDtoD_v2", ("copies",)),
        ("cuMemcpy3DPeer_ptds", ("copies",)),
        ("cuMemcpyBatchAsync_v2_ptsz", ("copies",)),
        ("cuMemcpy3D_v2", ("copies", "syncs")),
        ("cuMemcpy", ("copies", "syncs")),
        ("cuMemsetD2D32Async_ptsz", ("memsets",)),
        ("cuMemAlloc_v2", ()),
        ("cuMemFree_v2", ()),
    ],
)
def test_kinds(name, kinds):
    assert cupti.kinds_of(name) == kinds


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the stand-in for CUPTI cannot be compiled")
    path = tmp_path_factory.mktemp("cupti") / "libcupti.so"
    done = subprocess.run(["gcc", "-O1", "-Wall", "-shared", "-fPIC", SOURCE, "-o", path], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return path


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
def driver(compiled, toolkit):
    """The stand-in; ``fake_call(name)`` is a call of the driver."""
    path = shutil.copy(compiled, toolkit / "libcupti.so.13")
    library = ctypes.CDLL(path)
    library.fake_call.argtypes = [ctypes.c_char_p]
    return library


def _call(driver, *names):
    return [driver.fake_call(name.encode()) for name in names]


def test_calls_count_once_each_and_inside_of_the_block_only(driver):
    assert _call(driver, "cuLaunchKernel") == [0]
    with cupti.counting() as calls:
        _call(driver, *["cuLaunchKernel"] * 3, "cuLaunchKernelEx_ptsz", "cuLaunchCooperativeKernel")
        _call(driver, "cuGraphLaunch", "cuGraphLaunch_ptsz", "cuStreamSynchronize", "cuEventSynchronize")
        _call(driver, "cuCtxSynchronize_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpyDtoH_v2")
        _call(driver, "cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoD_v2", "cuMemcpy_ptds")
        others = ["cuInit", "cuMemAlloc_v2", "cuMemFree_v2", "cuStreamQuery", "cuLaunchHostFunc"]
        assert _call(driver, *others) == [0] * 5  # are not even asked for
        _call(driver, "cuMemsetD8Async")
    assert calls == Calls(launches=5, graph_launches=2, syncs=6, uploads=2, copies=5, memsets=1)
    assert _call(driver, "cuLaunchKernel") == [0]
    assert calls.launches == 5


def test_each_block_has_numbers_of_its_own(driver):
    for number in (2, 1):
        with cupti.counting() as calls:
            _call(driver, *["cuLaunchKernel"] * number)
        assert calls == Calls(launches=number)


def test_calls_of_other_threads_count(driver):
    def run():
        _call(driver, *["cuLaunchKernel"] * 1000)

    threads = [threading.Thread(target=run) for _ in range(4)]
    with cupti.counting() as calls:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls == Calls(launches=4000)


def test_after_an_exception_nothing_is_left(driver):
    with pytest.raises(UnicodeEncodeError), cupti.counting() as calls:
        _call(driver, "cuLaunchKernel", "\ud800")
    assert calls.launches == 1
    assert _call(driver, "cuLaunchKernel") == [0]
    assert cupti.why_not() == ""


def test_only_one_can_count(driver):
    with cupti.counting() as calls:
        why_not = cupti.why_not()
        _call(driver, "cuLaunchKernel")
    found = "cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
    assert why_not == f"CUPTI does not work here: {found}"
    assert calls == Calls(launches=1)


def test_where_functions_cannot_be_watched_nobody_stays_subscribed(driver):
    failing = ctypes.c_int.in_dll(driver, "fake_failing")
    failing.value = 1
    assert cupti.why_not() == "CUPTI does not work here: cuptiEnableCallback: CUPTI_ERROR_UNKNOWN (999)"
    failing.value = 0
    assert cupti.why_not() == ""


def test_the_newest_of_a_folder_is_taken(driver, toolkit):
    (toolkit / "libcupti.so.12").write_text("no library")
    assert cupti.why_not() == ""


def test_without_cupti_one_line_says_how_to_get_it(toolkit):
    missing = pytest.raises(CuptiMissing, match=r"^libcupti\.so of CUDA is missing: pip install nvidia-cuda-cupti ")
    with missing, cupti.counting():
        pass
    assert "\n" not in cupti.why_not()


def test_a_file_that_is_no_library_is_named(toolkit):
    (toolkit / "libcupti.so.13").write_text("no library")
    assert f"is missing ({toolkit / 'libcupti.so.13'}: " in cupti.why_not()


# --- a GPU


@pytest.fixture
def cupy():
    if reason := cupti.why_not():
        pytest.skip(f"nobody counts: {reason}")
    import cupy

    return cupy


@pytest.mark.gpu
def test_an_operation_is_a_launch_and_a_read_waits(cupy):
    x = cupy.zeros(8, cupy.float32)
    y = cupy.add(x, 1)  # compiled
    y.get()
    with cupti.counting() as launched:
        cupy.add(x, 1, out=y)
    with cupti.counting() as read:
        y.get()
    with cupti.counting() as waited:
        cupy.cuda.get_current_stream().synchronize()
    assert launched == Calls(launches=1)
    assert (read.launches, read.copies, read.syncs > 0) == (0, 1, True)
    assert waited == Calls(syncs=1)


@pytest.mark.gpu
def test_a_graph_is_one_launch(cupy):
    x = cupy.zeros(8, cupy.float32)
    y = cupy.add(x, 1)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(3):
            cupy.add(x, 1, out=y)
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
        with cupti.counting() as calls:
            graph.launch()
        stream.synchronize()
    assert calls == Calls(graph_launches=1)
