"""Machines for subprocesses that import Chainer: with a CuPy 14, a GPU and cuDNN's frontend, or stand-ins for them."""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap

import pytest

from tests.compat.test_cupy import STUB

NVML = """
    int nvmlInit_v2(void) {{ return {init}; }}
    int nvmlDeviceGetCount_v2(unsigned int* count) {{ *count = {count}; return 0; }}
    int nvmlShutdown(void) {{ return 0; }}
"""

# What initializes CUDA, or asks the driver for the functions that do.
DRIVER = """
    #include <stdlib.h>
    #include <unistd.h>
    static int touched(void) { write(2, "CUDA was touched", 16); _exit(77); }
    int cuInit(void) { return touched(); }
    int cuDriverGetVersion(void) { return touched(); }
    int cuGetProcAddress(void) { return touched(); }
    int cuGetProcAddress_v2(void) { return touched(); }
    int cuDeviceGetCount(void) { return touched(); }
"""

RUNTIME = """
    def __getattr__(name):
        raise AssertionError(f"the CUDA runtime was asked for {name}")
"""

PATHFINDER = {"cuda/__init__.py": "", "cuda/pathfinder.py": "def load_nvidia_dynamic_lib(name): pass"}
FRONTEND = {"cudnn.py": "def backend_version(): return 92800"}
NO_FRONTEND = {"cudnn.py": "raise ImportError('there is no frontend')"}


def write(folder, files):
    """Writes ``{path: text}`` below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def compile_library(folder, name, source):
    """Compiles a shared library; skips the test without gcc."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it compiles the stand-ins for NVIDIA's libraries")
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(_compiled(name, source))


@functools.cache
def _compiled(name, source):
    with tempfile.NamedTemporaryFile() as made:
        command = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-xc", "-", "-o", made.name]
        subprocess.run(command, input=textwrap.dedent(source), text=True, check=True, capture_output=True)
        return pathlib.Path(made.name).read_bytes()


def machine(folder, gpus=1, cupy=True, frontend=FRONTEND, more=None, **variables):
    """Makes the environment of a subprocess.

    Args:
        folder: for the files; a path.
        gpus (int): what NVIDIA's management library says; -1 where it fails.
        cupy (bool): with a stand-in for CuPy 14; else the one that is installed.
        frontend: files of cuDNN's frontend; ``None`` for those that are installed.
        more: further files, as ``{path: text}``.
        variables: of the environment.
    """
    if cupy:
        write(folder, {**STUB, "cupy/cuda/runtime.py": RUNTIME})
    if frontend is not None:
        write(folder, {**(PATHFINDER if cupy else {}), **frontend})  # CuPy 14 has a pathfinder, and needs all of it
    write(folder, more or {})
    libraries = folder / "libraries"
    compile_library(libraries, "libnvidia-ml.so.1", NVML.format(init=999 if gpus < 0 else 0, count=max(gpus, 0)))
    compile_library(libraries, "libcuda.so.1", DRIVER)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CUDA_VISIBLE_DEVICES", "MIXPREC_CUDNN") and not name.startswith("CHAINER_")
    }
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")])),
        **variables,
    }


def python(code, env, *options):
    """Runs ``code``; returns the lines of its standard output and those of its standard error."""
    command = [sys.executable, "-W", "error", *options, "-c", "import mixprec\n" + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()
