"""C++ that tests compile: libraries are kept between runs, and the workers of pytest-xdist share them."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess

import pytest

from tests import ROOT

FOLDER = ROOT / ".pytest_cache" / "kernels"


def library(source, flags=(), header=""):
    """Returns a source as a loaded library, which is kept by a digest of all that it follows from.

    Args:
        source: C++ text.
        flags: for g++ beside the usual ones.
        header: C++ text that comes before the source. g++ reads it once for all libraries with the same flags.
    """
    # Static variables of inline functions, as shared memory is one here, would be those of all libraries of a process.
    flags = ("-std=c++17", "-Og", "-w", "-fno-gnu-unique", *flags, "-fPIC")
    path = FOLDER / f"{_digest(source, header, *flags)}.so"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        if header:
            source = f'#include "{_precompiled(header, flags).name}"\n{source}'
        _made(path, path.with_suffix(".cpp"), source, [*flags, "-shared"])
    return ctypes.CDLL(str(path))


def _precompiled(header, flags):
    """Returns the path of a header, beside which lies what g++ takes for it: parsing one takes longer than a kernel."""
    path = FOLDER / f"{_digest(header, *flags)}.h"
    made = path.with_suffix(".h.gch")
    if not made.exists():
        _made(made, path, header, [*flags, "-x", "c++-header"])
    return path


def _made(path, text, source, flags):
    own = FOLDER / f"{path.stem}-{os.getpid()}{text.suffix}"  # another worker may compile the same
    own.write_text(source)
    made = own.with_suffix(".tmp")
    done = subprocess.run(["g++", *flags, own, "-o", made], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    own.rename(text)
    made.rename(path)


def _digest(*texts):
    return hashlib.sha256("\0".join([*texts, _compiler()]).encode()).hexdigest()[:16]


def need_compiler():
    """Skips the test where g++ is not installed."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: the kernels cannot run on the host")


@functools.cache
def _compiler():
    need_compiler()
    return subprocess.run(["g++", "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True).stdout
