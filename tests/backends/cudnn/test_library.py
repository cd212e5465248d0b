"""What is missing is named, in one line with what installs it; nothing is loaded by an import."""

import re
import subprocess
import sys
import types

import pytest

from mixprec.backends.cudnn.operation_graphs import data_type
from mixprec.base import cudnn_library
from tests.stand_ins import fake_cudnn


def pathfinder_without(missing):
    """A stand-in for ``cuda.pathfinder`` that finds everything but one library."""

    def load_nvidia_dynamic_lib(name):
        loaded.append(name)
        if name == missing:
            raise RuntimeError(f"Failure finding {name}\nSearched in:\n ...")

    loaded = []
    module = types.ModuleType("cuda.pathfinder")
    module.load_nvidia_dynamic_lib, module.loaded = load_nvidia_dynamic_lib, loaded
    return module


@pytest.fixture
def modules(monkeypatch):
    """Puts modules in place of those that are installed or not; ``None`` for one that is not."""

    def put(pathfinder, cudnn):
        package = None if pathfinder is None else types.ModuleType("cuda")
        if package is not None:
            package.pathfinder = pathfinder
        monkeypatch.setitem(sys.modules, "cuda", package)
        monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
        monkeypatch.setitem(sys.modules, "cudnn", cudnn)

    return put


def broken_frontend():
    """As the real one behaves without libcudnn."""

    def backend_version():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    return types.SimpleNamespace(backend_version=backend_version)


MISSING = [
    (None, fake_cudnn, "cuda-pathfinder"),
    (pathfinder_without("cudart"), fake_cudnn, "libcudart.so"),
    (pathfinder_without("nvrtc"), fake_cudnn, "libnvrtc.so"),
    (pathfinder_without(None), None, "nvidia-cudnn-frontend"),
    (pathfinder_without(None), broken_frontend(), "libcudnn.so.9"),
]


@pytest.mark.parametrize(
    ("pathfinder", "cudnn", "named"), MISSING, ids=["pathfinder", "cudart", "nvrtc", "frontend", "cudnn"]
)
def test_what_is_missing_is_named(modules, pathfinder, cudnn, named):
    modules(pathfinder, cudnn)
    with pytest.raises(cudnn_library.CudnnMissing) as caught:
        cudnn_library.load.__wrapped__()
    text = str(caught.value)
    assert named in text
    assert re.search(r'pip install -e "\.\[cuda13\]"', text)
    assert "\n" not in text


def test_libraries_are_loaded_before_the_frontend(modules):
    pathfinder = pathfinder_without(None)
    modules(pathfinder, fake_cudnn)
    assert cudnn_library.load.__wrapped__() is fake_cudnn
    assert pathfinder.loaded == ["cudart", "nvrtc"]


def test_dtypes():
    assert data_type(fake_cudnn, "bfloat16") is fake_cudnn.data_type.BFLOAT16
    with pytest.raises(KeyError):
        data_type(fake_cudnn, "int32")


def test_importing_loads_nothing():
    names = "sys, mixprec.backends.cudnn.operation_graphs, mixprec.base.cudnn_library"
    code = f"import {names}; print('cudnn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
