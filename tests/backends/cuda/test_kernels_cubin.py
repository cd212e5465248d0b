"""The kernels of the primitives compile for every GPU that matters, with no registers in local memory."""

import concurrent.futures
import itertools
import re
from importlib import resources

import pytest

from mixprec.backends.cuda import kernels
from mixprec.backends.launch import CupyLauncher, text_of
from tests.update.test_cubin import ARCHITECTURES, compiler_for

FILES = sorted(
    path.name[:-3] for path in resources.files("mixprec.backends").joinpath("kernels").iterdir() if path.suffix == ".cu"
)


def _sources(file, whole):
    """In every storage dtype, and with every other one; ``whole``: with as many elements for a thread as it takes."""
    own = text_of("mixprec.backends", f"{file}.cu")
    texts = {}
    for dtype, other in itertools.product(kernels.DTYPES, repeat=2):
        if other == dtype or "OTHER" in own:
            width = kernels.width_of(0, [dtype], []) if whole else 1
            name = f"{file}, {dtype}, {other}, {width} at once"
            texts[name] = kernels.source_of(file, CupyLauncher.threads, dtype, width, other)
    return texts


def test_there_are_kernels():
    assert {"pooling", "columns", "loss", "dropout", "layout", "local_response_norm"} <= set(FILES)
    for file in FILES:
        assert len(kernels.names_in(file)) == text_of("mixprec.backends", f"{file}.cu").count("__global__")


@pytest.mark.cupy
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("architecture", "whole"), [*((architecture, True) for architecture in ARCHITECTURES), ("sm_90", False)]
)
@pytest.mark.parametrize("file", FILES)
def test_every_kernel_compiles_without_spills(file, architecture, whole):
    compiler = compiler_for(architecture)
    sources = _sources(file, whole)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        logs = pool.map(compiler, sources.values(), [architecture] * len(sources))
    for name, log in zip(sources, logs, strict=True):
        assert "warning" not in log, f"{name}: {log}"
        for kernel in kernels.names_in(file):
            assert re.search(rf"'?{kernel}'? for '{architecture}'", log), f"{name}: {log}"
        moved = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert len(moved) >= len(kernels.names_in(file)), f"{name}: {log}"
        assert all(sizes == ("0", "0", "0") for sizes in moved), f"{name}: {log}"
