"""ChainerMN in a process of its own, without MPI: mpi4py is a stub with what an import needs."""

import os
import subprocess
import sys
import textwrap

_STUB = """
    import collections, sys, types
    MPI = types.ModuleType("mpi4py.MPI")
    MPI._typedict = collections.defaultdict(int)
    MPI.FLOAT = MPI.ANY_TAG = MPI.ANY_SOURCE = None
    sys.modules["mpi4py"] = types.ModuleType("mpi4py")
    sys.modules["mpi4py"].MPI = sys.modules["mpi4py.MPI"] = MPI
"""


def run(*parts):
    """Runs code, given in parts that may be indented, with warnings as errors; returns the lines that it prints."""
    code = "".join(textwrap.dedent(part) for part in (_STUB, *parts))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=os.environ, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
