"""Another process that holds the lock of a results folder."""

import contextlib
import subprocess
import sys

from tests import ROOT

_PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from mixprec.app.run import lock
with lock.locked("out"):
    print("has it", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def lock_holder():
    """Starts a process that has the lock of the folder ``out``; it ends with the block, or with a line of input."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "has it\n"
        yield process
    finally:
        process.kill()
        process.communicate()
