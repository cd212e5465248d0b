"""The kernels for AMX: on any processor with AVX512_BF16 by a stand-in for its tiles, and beside it on one with AMX."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from mixprec.base.dtypes import BFLOAT16
from mixprec.native.native_library import SWITCH, library
from tests import ROOT
from tests.native import guard_pages

NAME = "AVX-512 with AMX"
FLAGS = set(pathlib.Path("/proc/cpuinfo").read_text().split()) if pathlib.Path("/proc/cpuinfo").exists() else set()
COMPILER = shutil.which("g++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(library() is None or COMPILER is None, reason="needs the native library and g++"),
]
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in FLAGS, reason="needs a processor with AVX512_BF16")
needs_amx = pytest.mark.skipif(
    library() is None or library().instructions() != NAME, reason="needs a processor with AMX"
)


def build(folder, *options, **variables):
    """Compiles the library into a folder; returns its path."""
    command = [sys.executable, "setup.py", "-q", "build_ext", *options, "--build-lib", folder, "--build-temp", folder]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    (path,) = folder.glob("mixprec/native/_library*.so")
    return path, done.stderr


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Path of the library with a stand-in for the tiles."""
    return build(tmp_path_factory.mktemp("stand_in"), "--define", "STAND_IN", "--include-dirs", "tests/native")[0]


def python(*arguments, **variables):
    """Runs Python in the checkout; returns what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, SWITCH: "1", "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_bf16
def test_the_stand_in_passes_the_tests_of_convolutions(stand_in):
    tests = ["tests/backends/cpu/test_convolution.py", "tests/backends/cpu/test_linear.py", "tests/backends/native"]
    chosen = ["-m", "", "-k", "(native or bf16 or bits or depend) and not other_instructions and not no_memory"]
    plugin = ["-p", "no:cacheprovider", "-p", "tests.native.stand_in"]
    python("-m", "pytest", "-q", "-x", *plugin, *chosen, *tests, STAND_IN=str(stand_in))


@needs_bf16
def test_random_calls_of_the_stand_in_between_pages_without_access(stand_in):
    program = "import runpy, tests.native.stand_in; runpy.run_module('tests.native.guard_pages', run_name='__main__')"
    lines = python("-c", program, "0", "300", STAND_IN=str(stand_in)).splitlines()
    assert (lines[0], lines[-1]) == (NAME, "done")


@needs_amx
def test_the_processor_gives_the_bits_of_the_stand_in(stand_in, tmp_path):
    """BF16 convolutions of random arrays, some with infinite, subnormal and huge numbers; any NaN is like any other."""
    program = "import sys, tests.native.stand_in; from tests.native import test_amx; test_amx.save_results(sys.argv[1])"
    python("-c", program, str(tmp_path / "stand_in.npz"), STAND_IN=str(stand_in))
    save_results(tmp_path / "processor.npz")
    expected, found = (np.load(tmp_path / f"{name}.npz") for name in ("stand_in", "processor"))
    assert list(expected) == list(found)
    for name in expected:
        np.testing.assert_array_equal(without_nan(found[name]), without_nan(expected[name]), err_msg=name)


def save_results(path):
    """Saves the results of random BF16 convolutions, made by the library that is loaded."""
    assert library().instructions() == NAME
    results = {}
    for number in range(400):
        name, arguments = guard_pages.Calls(number).convolution()
        if any(isinstance(x, np.ndarray) and x.dtype != np.uint16 and x.ndim > 1 for x in arguments):
            continue
        getattr(library(), name)(*arguments)
        results[f"{number} {name}"] = arguments[-1]
    np.savez(path, **results)


def without_nan(x):
    """Returns the bits of bfloat16 numbers, 0 for NaN."""
    return np.where(np.isnan(x.view(BFLOAT16).astype(np.float32)), 0, x)


@pytest.mark.parametrize("is_real", [pytest.param(True, marks=needs_amx), False], ids=["AMX", "stand-in"])
def test_tiles_are_kept_while_a_thread_does_not_run(tmp_path, is_real):
    """There is a report of virtual machines that lost them."""
    program = tmp_path / "kept_tiles"
    defines = [] if is_real else ["-DSTAND_IN", "-Itests/native"]
    command = [
        COMPILER,
        "-std=c++17",
        "-O2",
        "-pthread",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        *defines,
    ]
    sources = ["-Imixprec/native/source", "tests/native/kept_tiles.cpp"]
    subprocess.run([*command, *sources, "-o", program], cwd=ROOT, check=True)
    subprocess.run([program], check=True)


@pytest.mark.long
def test_an_assembler_without_amx_leaves_out_amx_alone(tmp_path):
    """An assembler that refuses the instructions, as one before 2021 does."""
    assembler = tmp_path / "bin" / "as"
    assembler.parent.mkdir()
    assembler.write_text(
        f'#!/bin/sh\nfor last; do :; done\ngrep -q tdpbf16ps "$last" && exit 1\nexec {shutil.which("as")} "$@"\n'
    )
    assembler.chmod(0o755)
    path, said = build(tmp_path, COMPILER_PATH=str(assembler.parent))
    assert "amx.cpp does not compile: the native library does without it" in said
    program = (
        "import tests.native.stand_in; from mixprec.native.native_library import load; print(load()[0].instructions())"
    )
    assert python("-c", program, STAND_IN=str(path)).strip() in ("AVX2", "AVX-512", "AVX-512 with BF16")
    chosen = ["tests/backends/cpu/test_convolution.py", "-k", "native and layers", "-m", ""]
    python(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.native.stand_in", *chosen, STAND_IN=str(path)
    )
