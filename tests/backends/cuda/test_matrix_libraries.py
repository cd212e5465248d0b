"""The calls of cuBLAS and cuSOLVER: what they are declared as, their errors, and how the libraries are found."""

import ctypes
import sys
import types

import numpy as np
import pytest

from mixprec import environment
from mixprec.backends.cuda.matrix_libraries import COMPUTE_32F, PLAIN, Cublas, Cusolver, LibraryMissing
from tests.backends.primitive_cases import FLOAT32
from tests.stand_ins import fake_matrix_libraries
from tests.stand_ins.cudnn_host import HostDevice
from tests.stand_ins.fake_matrix_libraries import Fake

LIBRARIES = {"cublas": Cublas, "cusolver": Cusolver}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_arguments_are_as_wide_as_in_the_headers(library):
    for name, arguments in library()._signatures.items():
        widths = [ctypes.sizeof(each) for each in arguments]
        assert widths == [ctypes.sizeof(each) for each in fake_matrix_libraries._SIGNATURES[name]], name


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_is_missing_is_named(monkeypatch, name):
    def load_nvidia_dynamic_lib(name):
        raise RuntimeError(f"Failure finding {name}\nSearched in:\n ...")

    library = LIBRARIES[name]()
    for pathfinder, named in (
        (None, "pip install cuda-pathfinder"),
        (types.SimpleNamespace(load_nvidia_dynamic_lib=load_nvidia_dynamic_lib), f"pip install nvidia-{name}"),
    ):
        monkeypatch.setitem(sys.modules, "cuda", types.SimpleNamespace(pathfinder=pathfinder) if pathfinder else None)
        with pytest.raises(LibraryMissing) as caught:
            library.create_handle()
        assert named in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_library_that_is_installed_has_all_functions(name):
    """Without a GPU they say so."""
    pytest.importorskip("cuda.pathfinder", reason="cuda-pathfinder is not installed")
    library = LIBRARIES[name]()
    try:
        assert set(library._functions) == set(library._signatures)
    except LibraryMissing as error:
        pytest.skip(str(error))
    if not environment.usable_device_count():
        with pytest.raises(RuntimeError, match=r"Create.*: NOT_INITIALIZED$"):
            library.create_handle()


def test_what_a_library_refuses_is_an_error_with_its_name():
    device = HostDevice()
    fake = Fake(device)
    cublas, cusolver = Cublas(fake), Cusolver(fake)
    handle = cublas.create_handle()
    matrix = np.ones((2, 2), np.float32)
    given = matrix.ctypes.data, 2, 4
    cublas.set_stream(handle=handle, stream=0)
    with pytest.raises(RuntimeError, match=r"^cublasGemmStridedBatchedEx: INVALID_VALUE$"):
        cublas.gemm(handle, (PLAIN, PLAIN), (2, 2, 2), given, given, FLOAT32, 0, given, 1, COMPUTE_32F)
    with pytest.raises(RuntimeError, match=r"^cusolverDnSetStream: INVALID_VALUE$"):
        cusolver.set_stream(handle=handle, stream=0)
    assert ["workspace of its own" in fake.refused[0], "another library" in fake.refused[1]] == [True, True]


def test_an_unknown_status_is_a_number():
    library = types.SimpleNamespace(**{name: lambda *arguments: 99 for name in Cublas()._signatures})
    with pytest.raises(RuntimeError, match=r"^cublasCreate_v2: status 99$"):
        Cublas(library).create_handle()
