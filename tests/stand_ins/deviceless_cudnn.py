"""cuDNN on a machine without a GPU: plans for GPUs that are described by files in tests/stand_ins/deviceless.

The files hold what cuDNN asks about a GPU; the names are from its own error messages, the values from data sheets. On a
machine with such a GPU, ``cudnn.create_device_properties(0).serialize()`` gives the real ones.
"""

import ctypes
import functools
import pathlib
import shutil
import subprocess

import pytest

from mixprec.base import cudnn_library

FOLDER = pathlib.Path(__file__).with_name("deviceless")
GPUS = {"H200": 90, "A100": 80, "B200": 100, "L4": 89}  # sm_version


def compile_driver(folder):
    """Compiles the stub driver where there is no real one; skips the test without gcc.

    Args:
        folder: where to; a path.

    Returns:
        its path, or ``None`` where NVIDIA's driver is installed.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        if shutil.which("gcc") is None:
            pytest.skip("gcc is not installed: without a GPU, cuDNN needs a stub of NVIDIA's driver to build plans")
        path = folder / "libcuda.so.1"
        source = FOLDER / "stub_driver.c"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", path], check=True, capture_output=True
        )
        return str(path)
    return None


def load(driver):
    """Returns the frontend's module in this process, which must not have loaded cuDNN before.

    The frontend looks for cuDNN in LD_LIBRARY_PATH first: so `make test-plans` has it load another version.

    Args:
        driver: from :func:`compile_driver`.

    Raises:
        CudnnMissing: cuDNN or its frontend is not installed.
    """
    if driver is not None:
        ctypes.CDLL(driver, ctypes.RTLD_GLOBAL)
    cudnn = cudnn_library.load()
    from cuda import pathfinder

    pathfinder.load_nvidia_dynamic_lib("cublasLt")  # cuDNN 9.19 does not find it; CuPy loads it where it is installed
    return cudnn


@functools.cache
def arguments_for(cudnn, gpu):
    """Returns what ``pygraph`` needs to know to build for a GPU."""
    text = (FOLDER / f"dev_{gpu}.json").read_text()
    return {"device_property": cudnn.create_device_properties(text), "sm_version": GPUS[gpu]}
