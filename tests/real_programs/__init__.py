"""Programs of Chainer's time around ``MixedPrecisionOptimizer`` and ``convert``.

``agents`` and ``detectors`` are scripts for libraries that only an environment for old code has: docs/own-code.md.
"""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import pytest

from tests import ROOT


def run_script(name, *arguments, needs, code=0):
    """Runs a script of this folder in a process of its own.

    Args:
        name: name of the module.
        arguments: its arguments.
        needs: name of the library without which the test is skipped.
        code: exit status that is expected.

    Returns:
        str: the last line of standard output, or of standard error if it fails as expected.
    """
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed: docs/own-code.md")
    if tuple(map(int, importlib.metadata.version("numpy").split(".")[:2])) >= (2, 4):
        pytest.skip("needs NumPy before 2.4, as the extra legacy has it: docs/own-code.md")
    env = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"tests.real_programs.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return (done.stderr if code else done.stdout).strip().splitlines()[-1]
