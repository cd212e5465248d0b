"""A command in a process group of its own: its output in a file, a time limit, and nothing of it left at the end."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import time

_POLL = 0.05  # seconds
_GRACE = 15.0  # seconds between SIGTERM and SIGKILL
_GONE = 10.0  # seconds that a process may take to end by SIGKILL; one that waits for a broken driver never does
# The output of a process that is killed is complete, and one that crashes says where.
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


@dataclasses.dataclass(frozen=True)
class Stop:
    """When a command that has no end of its own is asked to come to one.

    Attributes:
        file: path that the command makes when it has begun with what it is run for.
        seconds: how long after that SIGTERM is sent, to the command alone.
    """

    file: pathlib.Path
    seconds: float


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: its exit status, -N after signal N; ``None`` if not even SIGKILL has ended it.
        seconds: how long it ran.
        timed_out: whether it reached its limit.
        interrupted: whether it was ended because this process was asked to end.
    """

    status: int | None
    seconds: float
    timed_out: bool
    interrupted: bool


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


def run(command, log, *, folder, limit, interruption, stop=None, grace=_GRACE):
    """Runs a command, and ends its process group when it is over, too long, or interrupted.

    SIGTERM goes to all processes of the group, and SIGKILL after ``grace``, or as soon as a second signal comes in. A
    process that has left the group, as a daemon does, is not found.

    Args:
        command: list of its words.
        log: path of the file that gets all its output.
        folder: working directory.
        limit: seconds that it may take.
        interruption: :class:`Interruption`.
        stop: :class:`Stop`, or ``None``.
        grace: seconds.

    Returns:
        Ended

    Raises:
        OSError: the command cannot be started.
    """
    began = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        over = _wait(process.pid, began + limit, interruption, stop)
        seconds = time.monotonic() - began
    finally:
        _end(process.pid, interruption, grace)
    status = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(_POLL)
    interrupted = not over and bool(interruption.signals)
    return Ended(status, seconds, not over and not interrupted, interrupted)


def members(group):
    """Returns the numbers of the processes of a group that have not ended, as a list."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            state, _, own_group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(own_group) == group and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def _wait(leader, deadline, interruption, stop):
    """Waits for a process; returns whether it has ended by itself. It is not reaped: its number stays its own."""
    stop_at = None
    while os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = time.monotonic()
        if now >= deadline or interruption.signals:
            return False
        if stop is not None and stop_at is None and stop.file.exists():
            stop_at = now + stop.seconds
        if stop_at is not None and now >= stop_at:
            os.kill(leader, signal.SIGTERM)
            stop = stop_at = None
        time.sleep(_POLL)
    return True


def _end(group, interruption, grace):
    """Ends all processes of a group whose leader has not been reaped."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _GONE)):
        deadline = time.monotonic() + seconds
        if members(group):
            os.killpg(group, number)
        while members(group) and time.monotonic() < deadline:
            if number == signal.SIGTERM and len(interruption.signals) > 1:
                break
            time.sleep(_POLL)
