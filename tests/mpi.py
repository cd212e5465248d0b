"""Code in processes of their own that talk through MPI, for tests of ChainerMN."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from tests import ROOT

_MPIEXEC = pathlib.Path(sys.executable).with_name("mpiexec")
_LIMIT = 120  # seconds


# The beginning of a program: a communicator, its rank, and say(), which prints a line that others do not break.
COMMUNICATOR = """
    import sys
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import chainermn
    warnings.filterwarnings("ignore", category=FutureWarning)  # chainermn is experimental, says Chainer
    import chainer
    import ml_dtypes
    import numpy as np
    import mixprec
    communicator = chainermn.create_communicator("naive")
    rank = communicator.rank

    def say(*what):
        sys.stdout.write(" ".join(map(str, what)) + chr(10))  # at once: all processes write to the same pipe
"""


def run(processes, *code):
    """Runs code under ``mpiexec``, with warnings as errors and one thread of BLAS for each process.

    A process that fails ends the others, as mpi4py runs the code. The test is skipped where mpi4py, or an ``mpiexec``
    beside this Python, is missing.

    Args:
        processes: how many.
        code: parts of the program, each of which may be indented.

    Returns:
        The lines that all processes have printed, sorted, since ranks print in any order.
    """
    done = start(processes, "-m", "mpi4py", code=code)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def start(processes, *options, code):
    """Runs code as :func:`run` does, by Python with ``options``; returns the ``subprocess.CompletedProcess``."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: extra mpi")
    if not _MPIEXEC.exists():
        pytest.skip(f"no {_MPIEXEC}: extra mpi")
    program = "".join(map(textwrap.dedent, code))
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    whole_lines = {"PYTHONUNBUFFERED": ""}  # or those of several processes are mixed
    command = [_MPIEXEC, "-n", str(processes), sys.executable, "-W", "error", *options, "-c", program]
    environment = {**os.environ, **one_thread, **whole_lines, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, env=environment)
