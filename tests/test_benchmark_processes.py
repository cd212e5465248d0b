"""mixprec.benchmark.processes: what comes back from the process of a contestant, and what is left of it."""

import os
import time

import pytest

from mixprec.benchmark.processes import Worker

DIED = "its process died: a crash, or the memory of the machine was not enough"


def _raise(error):
    raise error


class Odd(Exception):
    """Its text has no line."""

    def __str__(self):
        return " \n "


def test_results_and_exceptions_come_back():
    with Worker() as worker:
        assert worker.call(os.path.join, "a", "b") == "a/b"
        assert worker.attempt(os.path.join, "a", "b") == ("a/b", "")
        assert worker.call(os.getpid) != os.getpid()
        with pytest.raises(KeyError):
            worker.call(_raise, KeyError("x"))
        for error, reason in (
            (
                MemoryError("Out of memory allocating 3 bytes\n(allocated so far: 0)"),
                "Out of memory allocating 3 bytes",
            ),
            (ValueError(), ""),
            (Odd(), ""),
        ):
            name = type(error).__name__
            assert worker.attempt(_raise, error) == (None, f"{name}: {reason}" if reason else name)
        assert worker.attempt(os.getcwd) == (os.getcwd(), "")  # it has survived all that


def test_a_process_that_dies_is_a_reason_from_then_on():
    with Worker() as worker:
        assert worker.attempt(os._exit, 9) == (None, DIED)
        assert worker.attempt(os.getpid) == (None, DIED)


def test_what_does_not_answer_is_killed():
    with Worker() as worker:
        pid = worker.call(os.getpid)
        assert worker.attempt(time.sleep, 600, limit=0.25) == (None, "no answer within 0.25 s")
        worker.end()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
