"""Nothing before or behind an array is touched, and outputs depend on the inputs only: see guard_pages.py."""

import os
import subprocess
import sys

import pytest

from mixprec.native.native_library import SWITCH, library
from tests import ROOT

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native library")


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["1", "avx512", "avx2"])
def test_random_calls(instructions):
    command = [sys.executable, "-m", "tests.native.guard_pages", "0", "400"]
    env = {**os.environ, SWITCH: instructions}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, "done"), f"{lines[0]}, in call {lines[-1]}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("at_end", [True, False])
def test_a_page_is_where_the_array_ends(at_end):
    """Reading one element more, as a wrong kernel would, ends the process."""
    program = f"""
import ctypes, numpy as np
from tests.native.guard_pages import between_pages
x = between_pages(np.arange(5, dtype="f4"), {at_end})
print(x.sum(), flush=True)
ctypes.c_float.from_address(x.ctypes.data + {20 if at_end else -4}).value
print("read")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode
    assert done.stdout == "10.0\n"
