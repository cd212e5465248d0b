"""Loading of the library, and what is said where it is not used."""

import logging
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

from mixprec.base.dtypes import BFLOAT16
from mixprec.native import native_library as library
from mixprec.native import sources
from tests import ROOT

KEPT = "keep_freed_memory"
BUILD = f"cd {shlex.quote(str(ROOT))} && {shlex.quote(sys.executable)} setup.py -q build_ext --inplace --force"


@pytest.fixture
def compiled(monkeypatch):
    """A stand-in for the compiled module, of the sources that are here."""
    module = types.SimpleNamespace(
        called=[],
        sources=sources.digest,
        use_best=lambda: module.called.append("use_best"),
        use_avx2=lambda: module.called.append("use_avx2"),
        use_avx512=lambda: module.called.append("use_avx512"),
        use_avx512bf16=lambda: module.called.append("use_avx512bf16"),
        set_threads=lambda count: module.called.append(count),
        keep_freed_memory=lambda: module.called.append(KEPT),
        MOST_THREADS=256,
    )
    for name in library._MALLOC:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(library.SWITCH, "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setitem(sys.modules, "mixprec.native._library", module)
    monkeypatch.setattr("mixprec.native._library", module, raising=False)
    return module


@pytest.mark.parametrize(
    ("switch", "called"),
    [("1", ["use_best", 3, KEPT]), *((name, [f"use_{name}", 3, KEPT]) for name in ("avx2", "avx512", "avx512bf16"))],
)
def test_it_is_loaded(compiled, monkeypatch, switch, called):
    monkeypatch.setenv(library.SWITCH, switch)
    assert library.load() == (compiled, "")
    assert compiled.called == called


def test_a_library_of_other_sources_is_not_used(compiled):
    compiled.sources = lambda: "0123456789abcdef"
    module, reason = library.load()
    assert module is None
    assert reason == f"its sources have changed; to compile it: {BUILD}"


def test_a_wheel_has_no_sources_to_compare(compiled, monkeypatch, tmp_path):
    compiled.sources = lambda: "0123456789abcdef"
    monkeypatch.setattr(sources, "_FOLDER", tmp_path)
    assert library.load() == (compiled, "")


@pytest.mark.parametrize("name", ["added.inl", "pool.h"])
def test_the_digest_is_that_of_all_sources(monkeypatch, tmp_path, name):
    folder = sources._FOLDER
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = sources.digest()
    monkeypatch.setattr(sources, "_FOLDER", tmp_path)
    assert sources.digest() == before
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    assert sources.digest() != before


WARNINGS = [
    (ImportError("this processor has no AVX2 or FMA"), "x86_64", "this processor has no AVX2 or FMA"),
    (ModuleNotFoundError("x"), "aarch64", "it is for x86-64, not for aarch64"),
    (ModuleNotFoundError("x"), "x86_64", f"it was not compiled; to compile it, or to see why that fails: {BUILD}"),
]


@pytest.mark.parametrize(("error", "machine", "said"), WARNINGS)
def test_one_warning_says_that_numpy_computes(monkeypatch, caplog, error, machine, said):
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "mixprec.native._library":
                raise error

    monkeypatch.setenv(library.SWITCH, "1")
    monkeypatch.setattr(library.platform, "machine", lambda: machine)
    monkeypatch.delitem(sys.modules, "mixprec.native._library", raising=False)
    monkeypatch.delattr("mixprec.native._library", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    library.library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "mixprec"):
            assert library.library() is library.library() is None
    finally:
        library.library.cache_clear()
    text = "NumPy computes instead of mixprec's native library, float16 at half the speed, and Chainer's own loop "
    text += "updates parameters: "
    assert [record.getMessage() for record in caplog.records] == [text + said]


def test_the_command_that_compiles_it_works_in_a_folder_with_a_space(tmp_path):
    """What load() says where there is no library, given to a shell as it is."""
    folder = tmp_path / "a folder"
    left_out = shutil.ignore_patterns("_library*", "__pycache__")
    shutil.copytree(pathlib.Path(sources.__file__).parents[1], folder / "mixprec", ignore=left_out)
    (folder / "setup.py").write_text("print('compiles')")
    program = "from mixprec.native.native_library import load; print(load()[1])"
    environment = {**os.environ, library.SWITCH: "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout
    assert said.startswith("it was not compiled; to compile it, or to see why that fails: cd '")
    done = subprocess.run(said.partition(": ")[2], shell=True, check=True, capture_output=True, text=True)
    assert done.stdout == "compiles\n"


def test_a_wheel_says_how_to_see_the_error(monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "_FOLDER", tmp_path)
    monkeypatch.setitem(sys.modules, "mixprec.native._library", None)
    monkeypatch.setenv(library.SWITCH, "1")
    monkeypatch.setattr(library.platform, "machine", lambda: "x86_64")
    said = "to have it, install mixprec again where there is a C++ compiler; pip's -v shows what that says"
    assert library.load() == (None, f"it was not compiled; {said}")


def test_the_switch(monkeypatch):
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.load() == (None, "off: MIXPREC_NATIVE=0")
    monkeypatch.setenv(library.SWITCH, "yes")
    with pytest.raises(
        ValueError, match=r"^MIXPREC_NATIVE=yes: allowed: 1, 0, avx2, avx512 or avx512bf16; default: 1$"
    ):
        library.load()
    monkeypatch.setenv(library.SWITCH, "")
    assert library.load()[1] != "off: MIXPREC_NATIVE=0"


def test_raw():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert library.raw(x) is x
    assert library.raw(x.T).flags.c_contiguous
    assert library.raw(x.astype(BFLOAT16)).dtype == np.uint16
    odd = np.zeros(9, np.uint8)[1:].view(np.float32)
    assert not odd.flags.aligned
    assert library.raw(odd).flags.aligned


@pytest.mark.parametrize(("setting", "kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)])
@pytest.mark.skipif(library.library() is None, reason="needs the native library")
def test_freed_memory_stays_for_the_next_step(setting, kept):
    program = """
import resource, numpy as np
from mixprec.native.native_library import library
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(3 << 18, np.float32) for _ in range(30)]  # 3 MB each: smaller than what NumPy asks huge pages for
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
library()
print([faults() for _ in range(3)][-1])
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, library.SWITCH: "1", **setting},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (int(run.stdout) < 1000) == kept, run.stderr


@pytest.mark.skipif(library.library() is None, reason="needs the native library")
def test_the_best_instruction_set_is_the_one_that_the_kernel_reports():
    """In a process of its own, as other tests switch the set."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*:(.*)$", info, re.MULTILINE)[1].split())
    expected = {"1": "AVX2", "avx512bf16": "AVX2", "avx512": "AVX2", "avx2": "AVX2"}
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        expected |= {"1": "AVX-512", "avx512bf16": "AVX-512", "avx512": "AVX-512"}
        if "avx512_bf16" in flags:
            expected["avx512bf16"] = "AVX-512 with BF16"
            if "GenuineIntel" not in info:  # Intel's processors multiply float32 at twice the rate of BF16
                expected["1"] = "AVX-512 with BF16"
            if {"amx_bf16", "amx_tile"} <= flags:
                expected["1"] = "AVX-512 with AMX"
    script = "from mixprec.native.native_library import load; print(load()[0].instructions())"
    for switch, name in expected.items():
        run = [sys.executable, "-c", script]
        env = {**os.environ, library.SWITCH: switch}
        assert subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout == f"{name}\n"
