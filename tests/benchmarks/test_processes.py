"""benchmarks.processes: what comes back from the process of a row, and what is left of it."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import processes
from benchmarks.processes import Worker
from tests import ROOT

pytestmark = pytest.mark.slow

DIED = "its process died: a crash, or the memory of the machine was not enough"


def _raise(error):
    raise error


class Odd(Exception):
    """Its text has no line."""

    def __str__(self):
        return " \n "


class Demanding(Exception):
    """It cannot be made of its text alone, as pickle wants to."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def _raise_demanding():
    raise Demanding("one", "two")


def _function():
    return lambda: None


def _is_there(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for_the_end_of(pid):
    end = time.monotonic() + 60
    while _is_there(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not _is_there(pid)


def test_results_and_exceptions_come_back():
    with Worker() as worker:
        assert worker.call(os.path.join, "a", "b") == "a/b"
        assert worker.attempt(os.path.join, "a", "b") == ("a/b", "")
        assert worker.call(os.getpid) != os.getpid()
        with pytest.raises(KeyError):
            worker.call(_raise, KeyError("x"))
        for error, reason in (
            (MemoryError("Out of memory: 3 bytes\n(allocated so far: 0)"), "Out of memory: 3 bytes"),
            (ValueError(), ""),
            (Odd(), ""),
        ):
            name = type(error).__name__
            assert worker.attempt(_raise, error) == (None, f"{name}: {reason}" if reason else name)
        assert worker.attempt(_raise_demanding) == (None, "RuntimeError: Demanding: one and two")
        assert worker.attempt(_function) == (None, "RuntimeError: function as a result")
        assert worker.attempt(os.getcwd) == (os.getcwd(), "")  # it has survived all that


def _hang(*texts):
    for text in texts:
        processes.report(text)
    time.sleep(600)


def _report_and(function, *arguments):
    processes.report("one")
    processes.report("two")
    return function(*arguments)


def test_what_is_killed_or_dies_says_how_far_it_was():
    with Worker() as worker:
        assert worker.call(_report_and, os.path.join, "a", "b") == "a/b"
        assert worker.progress == "two"
        assert worker.attempt(_report_and, _raise, KeyError("x")) == (None, "KeyError: 'x'")
        pid = worker.call(os.getpid)
        reason = worker.attempt(_hang, "imports", "3 plans", limit=1.0)[1]
        assert reason == "no answer within 1 s; it had come to: 3 plans"
        assert not _is_there(pid)
    with Worker() as worker:
        assert worker.attempt(_report_and, os._exit, 9) == (None, f"{DIED}; it had come to: two")
        assert worker.attempt(os.getpid) == (None, DIED)
    processes.report("nobody hears it")


def test_after_an_exception_nobody_waits_for_what_is_under_way():
    pids = []

    def interrupted():
        with Worker() as worker:
            pids.append(worker.call(os.getpid))
            worker._connection.send((time.sleep, (600,)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not _is_there(*pids)


def test_ctrl_c_is_for_the_parent():
    with Worker() as worker:
        pid = worker.call(os.getpid)
        os.kill(pid, signal.SIGINT)
        assert worker.attempt(os.getpid) == (pid, "")


PARENT = """
import os, sys, time
from benchmarks.processes import Worker
from tests import ROOT

if __name__ == "__main__":
    worker = Worker()
    print(worker.call(os.getpid), flush=True)
    worker.call(time.sleep, 600)
"""


def test_it_ends_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert _is_there(pid)
        parent.send_signal(signal.SIGKILL)
    assert _wait_for_the_end_of(pid)
