"""Code in processes of their own that talk through MPI, for tests of ChainerMN."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
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
    """Runs code as :func:`run` does, by Python with ``options``; returns what :func:`launch` returns."""
    program = "".join(map(textwrap.dedent, code))
    return launch(processes, [sys.executable, "-W", "error", *options, "-c", program])


def launch(processes, command, folder=None, limit=_LIMIT, **environment):
    """Runs a command in processes with one thread of BLAS each; the test is skipped where MPI is missing.

    The launcher may end without what a process wrote to standard error before it aborted. So the processes write that
    to a file.

    Args:
        processes: how many; 1 runs without the launcher.
        command: program and arguments.
        folder: working directory; None: that of the tests.
        limit: seconds.
        environment: more variables.

    Returns:
        subprocess.CompletedProcess: ``stderr`` is what the processes wrote, and then what the launcher wrote.
    """
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: extra mpi")
    if not _MPIEXEC.exists():
        pytest.skip(f"no {_MPIEXEC}: extra mpi")
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    whole_lines = {"PYTHONUNBUFFERED": ""}  # or those of several processes are mixed
    launcher = [_MPIEXEC, "-n", str(processes)] if processes > 1 else []
    with tempfile.NamedTemporaryFile("r") as errors:
        own = {"PYTHONPATH": path, "RANKS_STDERR": errors.name, **environment}
        done = subprocess.run(
            [*launcher, "sh", "-c", 'exec "$0" "$@" 2>> "$RANKS_STDERR"', *command],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=limit,
            env={**os.environ, **one_thread, **whole_lines, **own},
        )
        done.stderr = errors.read() + done.stderr
    return done
