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
