"""The kernels of the primitives compile for every GPU that matters, with no registers in local memory."""

import concurrent.futures
import itertools
import re
from importlib import resources

import pytest

from mixprec.backends.cuda import kernels
from mixprec.backends.launch import CupyLauncher, text_of
from tests.backends.cuda import loads_in_flight
from tests.cases import first
from tests.optimizer.batch.test_cubin import ARCHITECTURES, compiler_for, share_of

_GROUP = 8  # elements that a thread of a batch normalization reads at once, also of float32
FILES = sorted(
    path.name[:-3] for path in resources.files("mixprec.backends").joinpath("kernels").iterdir() if path.suffix == ".cu"
)


def _sources(file, architecture, whole):
    """In every storage dtype, with every other one, and all macros; ``whole``: with what a thread takes.

    An H100 gets all of them, and each of the other architectures a share.
    """
    own = text_of("mixprec.backends", f"{file}.cu")
    texts = {}
    cases = itertools.product(kernels.DTYPES, kernels.DTYPES, loads_in_flight.MACROS.get(file, [()]))
    cases = [case for case in cases if case[0] == case[1] or "OTHER" in own]
    for dtype, other, macros in share_of(architecture, cases):
        width = 1
        if whole:
            width = _GROUP if "batch_norm_rows.cuh" in own else kernels.width_of(0, [dtype], [])
        name = f"{file}, {dtype}, {other}, {width} at once, {macros}"
        texts[name] = kernels.source_of(file, CupyLauncher.threads, dtype, width, other, macros)
    return texts


@pytest.mark.cupy
@pytest.mark.parametrize("dtype", first(0, kernels.DTYPES, 1), ids=str)
@pytest.mark.parametrize("file", ["batch_norm", *loads_in_flight.MACROS])
def test_a_thread_of_a_batch_normalization_has_its_loads_under_way_together(file, dtype):
    """16 bytes each. With 64 of each thread two blocks of a multiprocessor hide the latency of memory."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    if loads_in_flight.disassembler() is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    for macros in loads_in_flight.MACROS.get(file, [()]):
        source = kernels.source_of(file, CupyLauncher.threads, dtype, _GROUP, None, macros)
        found = loads_in_flight.loops(loads_in_flight.compiled(source, "sm_90"))
        assert set(found) == set(kernels.names_in(file))
        for name, loop in found.items():
            assert loop.together >= 4, f"{name}, {macros}: {loop}"


def test_there_are_kernels():
    assert {"pooling", "columns", "loss", "dropout", "layout", "local_response_norm"} <= set(FILES)
    for file in FILES:
        assert len(kernels.names_in(file)) == text_of("mixprec.backends", f"{file}.cu").count("__global__")


@pytest.mark.cupy
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "whole"), [*((architecture, True) for architecture in ARCHITECTURES), ("sm_90", False)]
)
@pytest.mark.parametrize("file", FILES)
def test_every_kernel_compiles_without_spills(file, architecture, whole):
    compiler = compiler_for()
    sources = _sources(file, architecture, whole)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        logs = pool.map(compiler, sources.values(), [architecture] * len(sources))
    for name, log in zip(sources, logs, strict=True):
        assert "warning" not in log, f"{name}: {log}"
        for kernel in kernels.names_in(file):
            assert re.search(rf"'?{kernel}'? for '{architecture}'", log), f"{name}: {log}"
        moved = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert len(moved) >= len(kernels.names_in(file)), f"{name}: {log}"
        assert all(sizes == ("0", "0", "0") for sizes in moved), f"{name}: {log}"
