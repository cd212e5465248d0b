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
_KEPT = 500_000  # bytes of the output that are kept of its beginning, and as many of its end
# The output of a process that is killed is complete, and one that crashes says where.
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


class Ended(NamedTuple):
    """How a command ended."""

    status: int | None  # -N after signal N; None if not even SIGKILL has ended it
    seconds: float
    timed_out: bool
    interrupted: bool  # because this process was asked to end


class Output:
    """What a command has printed, its middle left out if it is more than a megabyte. Not on disk, which may be full."""

    def __init__(self):
        self._head, self._tail, self._left_out = b"", b"", 0

    def add(self, data):
        """Adds bytes."""
        room = _KEPT - len(self._head)
        self._head += data[:room]
        tail = self._tail + data[room:]
        self._left_out += max(0, len(tail) - _KEPT)
        self._tail = tail[-_KEPT:]

    def bytes(self):
        """Returns all that is kept."""
        gap = f"\n... {self._left_out} bytes are left out ...\n".encode() if self._left_out else b""
        return self._head + gap + self._tail

    def lines(self):
        """Returns the lines that are not empty, whatever bytes they hold."""
        return [line for line in self.bytes().decode(errors="replace").splitlines() if line.strip()]


class Interruption:
    """Notes SIGINT, SIGTERM and SIGHUP in a ``with`` statement, for :func:`run` to look at.

    A handler that raises could do so between the start of a process and the moment where it is known here.

    Attributes:
        signals: numbers of the signals that have come.
    """

    def __init__(self):
        self.signals = []
        self._before = {}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP under nohup
                self._before[number] = signal.signal(number, lambda number, frame: self.signals.append(number))
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)


def run(command, output, *, folder, limit, interruption, environment=(), grace=GRACE):
    """Runs a command, and ends its process group when it is over, too long, or interrupted.

    SIGTERM goes to all processes of the group, and SIGKILL after ``grace``, or as soon as a second signal comes in. A
    process that has left the group, as a daemon does, is not found.

    Args:
        command: list of its words.
        output: :class:`Output` that gets what it prints.
        folder: working directory.
        limit: seconds that it may take.
        interruption: :class:`Interruption`.
        environment: dict of variables, beside those of this process.
        grace: seconds.

    Returns:
        Ended

    Raises:
        OSError: the command cannot be started.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT, **dict(environment)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.set_blocking(process.stdout.fileno(), False)

    def read():  # also after the command's end: what it has left running may print
        with contextlib.suppress(BlockingIOError):
            while data := os.read(process.stdout.fileno(), 1 << 16):
                output.add(data)

    try:
        # The process is not reaped before its group is gone: its number stays its own.
        while not (over := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None):
            read()
            if time.monotonic() >= began + limit or interruption.signals:
                break
            time.sleep(_POLL)
        seconds = time.monotonic() - began
    finally:
        _end(process.pid, interruption, grace, read)
        read()
        process.stdout.close()
    status = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(_POLL)
    interrupted = not over and bool(interruption.signals)
    return Ended(status, seconds, not over and not interrupted, interrupted)


def _end(group, interruption, grace, read):
    """Ends all processes of a group whose leader has not been reaped."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, GONE)):
        deadline = time.monotonic() + seconds
        if _members(group):
            os.killpg(group, number)
        while _members(group) and time.monotonic() < deadline:
            read()
            if number == signal.SIGTERM and len(interruption.signals) > 1:
                break
            time.sleep(_POLL)


def _members(group):
    """Returns the numbers of the processes of a group that have not ended, as a list."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            state, _, own_group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(own_group) == group and state not in "ZX":
                found.append(int(path.parent.name))
    return found
