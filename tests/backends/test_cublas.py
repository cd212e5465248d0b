"""The calls of cuBLAS: what they are declared as, their errors, and how the library is found."""

import ctypes
import sys
import types

import numpy as np
import pytest

from mixprec.app.parts import gpus
from mixprec.backends import cublas
from mixprec.backends.cublas import COMPUTE_32F, PLAIN, Cublas, CublasMissing
from tests.backends.primitive_cases import FLOAT32
from tests.stand_ins import fake_cublas
from tests.stand_ins.cudnn_host import HostDevice


def test_arguments_are_as_wide_as_in_the_header():
    for name, arguments in cublas._SIGNATURES.items():
        widths = [ctypes.sizeof(each) for each in arguments]
        assert widths == [ctypes.sizeof(each) for each in fake_cublas._SIGNATURES[name]], name


def test_what_is_missing_is_named(monkeypatch):
    def load_nvidia_dynamic_lib(name):
        raise RuntimeError(f"Failure finding {name}\nSearched in:\n ...")

    for pathfinder, named in (
        (None, "cuda.pathfinder"),
        (types.SimpleNamespace(load_nvidia_dynamic_lib=load_nvidia_dynamic_lib), "libcublas.so"),
    ):
        monkeypatch.setitem(sys.modules, "cuda", types.SimpleNamespace(pathfinder=pathfinder) if pathfinder else None)
        with pytest.raises(CublasMissing, match=r'pip install -e "\.\[cuda13\]"') as caught:
            Cublas().create_handle()
        assert named in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_library_that_is_installed_has_all_functions():
    """Without a GPU it says so."""
    pytest.importorskip("cuda.pathfinder", reason="cuda-pathfinder is not installed")
    library = Cublas()
    try:
        assert set(library._functions) == set(cublas._SIGNATURES)
    except CublasMissing as error:
        pytest.skip(str(error))
    if not gpus.usable_device_count():
        with pytest.raises(RuntimeError, match=r"^cublasCreate_v2: NOT_INITIALIZED$"):
            library.create_handle()


def test_what_the_library_refuses_is_an_error_with_its_name():
    fake = fake_cublas.FakeCublas(HostDevice())
    library = Cublas(fake)
    handle = library.create_handle()
    library.set_stream(handle=handle, stream=0)
    matrix = np.ones((2, 2), np.float32)
    given = matrix.ctypes.data, 2, 4
    with pytest.raises(RuntimeError, match=r"^cublasGemmStridedBatchedEx: INVALID_VALUE$"):
        library.gemm(handle, (PLAIN, PLAIN), (2, 2, 2), given, given, 2 * (FLOAT32,), 1, 0, given, 1, COMPUTE_32F)
    (reason,) = fake.refused
    assert "workspace of its own" in reason


def test_an_unknown_status_is_a_number():
    library = types.SimpleNamespace(**{name: lambda *arguments: 99 for name in cublas._SIGNATURES})
    with pytest.raises(RuntimeError, match=r"^cublasCreate_v2: status 99$"):
        Cublas(library).create_handle()
