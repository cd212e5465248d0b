"""Which kernels are compiled, and when; widths; arrays of every storage dtype."""

import sys
import types

import numpy as np
import pytest

from mixprec.backends.cuda import kernels
from mixprec.backends.launch import CupyLauncher
from tests.backends.primitive_cases import BFLOAT16, FLOAT16, FLOAT32, STORAGE


class Launcher:
    threads = 128

    def __init__(self):
        self.sources, self.launches = [], []

    def compile(self, source, names):
        self.sources.append(source)
        return {name: (len(self.sources), name) for name in names}

    def launch(self, kernel, blocks, arguments):
        self.launches.append((kernel, blocks, arguments))


def test_a_source_is_compiled_when_it_is_first_needed():
    launcher = Launcher()
    own = kernels.Kernels(launcher)
    assert not launcher.sources
    for name in ("cast", "transpose", "cast"):
        own.launch("layout", name, 3, [1, 2.0], FLOAT16, 8, FLOAT32)
    own.launch("layout", "cast", 5, [], FLOAT16, 1, FLOAT32)
    own.launch("layout", "cast", 5, [], FLOAT16, 1)
    own.launch("layout", "cast", 5, [], FLOAT16, 1, FLOAT16)
    assert [place for (place, _), _, _ in launcher.launches] == [1, 1, 1, 2, 3, 3]
    assert launcher.launches[1] == ((1, "transpose"), 3, [1, 2.0])
    for line in ("#define THREADS 128", "#define WIDTH 8", "#define STORAGE FLOAT16", "#define OTHER FLOAT32"):
        assert line in launcher.sources[0].splitlines()
    assert "#define OTHER FLOAT16" in launcher.sources[2].splitlines()


def test_nothing_is_launched_for_nothing():
    launcher = Launcher()
    kernels.Kernels(launcher).launch("layout", "cast", 0, [], BFLOAT16)
    assert not launcher.launches


WIDTHS = [
    *((64, [FLOAT16], [512, 1024], 8), (64, [BFLOAT16, FLOAT32], [512], 4), (0, [FLOAT32], [16], 4)),
    *((63, [FLOAT16], [512], 1), (12, [FLOAT16], [512], 1), (12, [FLOAT32], [512], 4), (64, [FLOAT16], [512, 520], 1)),
]


@pytest.mark.parametrize(("length", "dtypes", "addresses", "width"), WIDTHS)
def test_width(length, dtypes, addresses, width):
    assert kernels.width_of(length, dtypes, addresses) == width


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_arrays_of_cupy_in_every_storage_dtype(dtype):
    """CuPy knows bfloat16 as that of ml_dtypes; without a device an array can stand on memory that is not there."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(4096, 64, None, 0), 0)
    array = cupy.ndarray((2, 3), dtype, memptr=memory)
    assert kernels.DTYPES[array.dtype] == dtype.name.upper()
    assert (array.itemsize, array.nbytes) == (dtype.itemsize, 6 * dtype.itemsize)


def test_new_arrays_are_on_the_launchers_device(monkeypatch):
    current = []

    class Device:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            current.append(self.number)

        def __exit__(self, *error):
            current.pop()

    made = []
    stub = types.SimpleNamespace(
        cuda=types.SimpleNamespace(Device=Device, PinnedMemoryPool=object),
        empty=lambda *arguments: made.append((*arguments, *current)),
    )
    monkeypatch.setitem(sys.modules, "cupy", stub)
    CupyLauncher(3).empty((2, 5), np.dtype(np.float16))
    assert made == [((2, 5), FLOAT16, 3)]
