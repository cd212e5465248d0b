"""Commands that are called in this process, without the seconds that importing Chainer takes in one of their own."""

import contextlib
import io
from typing import NamedTuple

import numpy as np


class Called(NamedTuple):
    """What a command has left on the terminal, under the names that a ``subprocess.CompletedProcess`` has."""

    returncode: int
    stdout: str
    stderr: str


def call(main, *arguments):
    """Calls ``main`` with a list of arguments, as strings.

    Returns:
        Called: its exit code is what ``main`` returned, or ended with; NumPy's random numbers are those from before.
    """
    out, err = io.StringIO(), io.StringIO()
    state = np.random.get_state()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(list(map(str, arguments)))
    except SystemExit as end:
        status = end.code
    finally:
        np.random.set_state(state)
    return Called(0 if status is None else status, out.getvalue(), err.getvalue())
