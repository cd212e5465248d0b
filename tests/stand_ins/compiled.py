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


def library(source, flags=()):
    """Returns a source as a loaded library, which is kept by a digest of all that it follows from.

    Args:
        source: C++ text.
        flags: for g++ beside the usual ones.
    """
    # Static variables of inline functions, as shared memory is one here, would be those of all libraries of a process.
    flags = ("-std=c++17", "-O1", "-w", "-fno-gnu-unique", *flags, "-shared", "-fPIC")
    digest = hashlib.sha256("\0".join([source, *flags, _compiler()]).encode()).hexdigest()[:16]
    path = FOLDER / f"{digest}.so"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        own = FOLDER / f"{digest}-{os.getpid()}"  # another worker may compile the same
        text, made = own.with_suffix(".cpp"), own.with_suffix(".tmp")
        text.write_text(source)
        done = subprocess.run(["g++", *flags, text, "-o", made], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        text.rename(path.with_suffix(".cpp"))
        made.rename(path)
    return ctypes.CDLL(str(path))


def need_compiler():
    """Skips the test where g++ is not installed."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: the kernels cannot run on the host")


@functools.cache
def _compiler():
    need_compiler()
    return subprocess.run(["g++", "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True).stdout
