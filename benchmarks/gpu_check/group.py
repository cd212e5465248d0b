"""A command in a process group of its own: its output kept, a time limit, and nothing of it left at the end."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from typing import NamedTuple

_POLL = 0.05  # seconds
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
GONE = 4.0  # seconds that a process may take to end by SIGKILL; one that waits for a broken driver never does
_KEPT = 1_000_000  # bytes of the output that are kept
# The output of a process that is killed is complete, and one that crashes says where.
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


class Ended(NamedTuple):
    """How a command ended."""

    status: int | None  # -N after signal N; None if not even SIGKILL has ended it
    seconds: float
    timed_out: bool
    interrupted: bool  # because this process was asked to end
    output: bytes  # a megabyte at most; not on disk, which may be full


@contextlib.contextmanager
def noting_signals():
    """Inside of the block SIGINT, SIGTERM and SIGHUP are added to the list that it is given, for :func:`run` to see.

    A handler that raises could do so between the start of a process and the moment where it is known here.
    """
    signals, before = [], {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP under nohup
            before[number] = signal.signal(number, lambda number, frame: signals.append(number))
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cut(data, size):
    """Returns bytes of which the middle is left out if they are more than ``size``."""
    if len(data) <= size:
        return data
    return data[: size // 2] + b"\n... the middle is left out ...\n" + data[-(size // 2) :]


def run(command, *, folder, limit, signals, environment=(), grace=GRACE):
    """Runs a command, and ends its process group when it is over, too long, or interrupted.

    SIGTERM goes to all processes of the group, and SIGKILL after ``grace``, or as soon as a second signal comes in. A
    process that has left the group, as a daemon does, is not found.

    Args:
        command: list of its words.
        folder: working directory.
        limit: seconds that it may take.
        signals: list from :func:`noting_signals`.
        environment: dict of variables, beside those of this process.
        grace: seconds.

    Returns:
        Ended

    Raises:
        OSError: the command cannot be started.
    """
    began, output = time.monotonic(), b""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**os.environ, **_ENVIRONMENT, **dict(environment)}
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **streams)
    os.set_blocking(process.stdout.fileno(), False)

    def read():  # also after the command's end: what it has left running may print
        nonlocal output
        with contextlib.suppress(BlockingIOError):
            while data := os.read(process.stdout.fileno(), 1 << 16):
                output += data
                if len(output) > 2 * _KEPT:
                    output = cut(output, _KEPT)

    try:
        # The process is not reaped before its group is gone: its number stays its own.
        while not (over := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None):
            read()
            if time.monotonic() >= began + limit or signals:
                break
            time.sleep(_POLL)
        seconds = time.monotonic() - began
    finally:
        _end(process.pid, signals, grace, read)
        read()
        process.stdout.close()
    status = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(_POLL)
    interrupted = not over and bool(signals)
    return Ended(status, seconds, not over and not interrupted, interrupted, cut(output, _KEPT))


def _end(group, signals, grace, read):
    """Ends all processes of a group whose leader has not been reaped."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, GONE)):
        deadline = time.monotonic() + seconds
        if _is_there(group):
            os.killpg(group, number)
        while _is_there(group) and time.monotonic() < deadline:
            read()
            if number == signal.SIGTERM and len(signals) > 1:
                break
            time.sleep(_POLL)


def _is_there(group):
    """Whether a process of a group has not ended."""
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            state, _, own_group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(own_group) == group and state not in "ZX":
                return True
    return False
