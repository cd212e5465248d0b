"""Processes in which contestants live by themselves: what one has imported, changed or allocated is not another's."""

import concurrent.futures
import multiprocessing
import os
import signal
from concurrent.futures.process import BrokenProcessPool

_DIED = "its process died: a crash, or the memory of the machine was not enough"


class Worker:
    """A process of one's own; it starts at once, and ends with the ``with`` block or by :meth:`end`."""

    def __init__(self):
        self._process = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._pid = self._process.submit(os.getpid)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()

    def call(self, function, *arguments):
        """Calls a function at the top of a module there; returns what it returns, raises what it raises."""
        return self._process.submit(function, *arguments).result()

    def attempt(self, function, *arguments, limit=None):
        """Calls a function at the top of a module there, which may fail.

        Args:
            function: what to call.
            *arguments: of it.
            limit: seconds, after which the process is killed; ``None`` for none.

        Returns:
            ``(result, reason)``: what the function has returned, and ``""``; or ``None``, and in one line why not.
        """
        try:
            return self._process.submit(outcome, function, arguments).result(limit)
        except BrokenProcessPool:
            return None, _DIED
        except concurrent.futures.TimeoutError:
            os.kill(self._pid.result(), signal.SIGKILL)
            return None, f"no answer within {limit:g} s"

    def end(self):
        """Ends the process; what it holds is free then."""
        self._process.shutdown()


def outcome(function, arguments):
    """Calls a function; returns what :meth:`Worker.attempt` does."""
    try:
        return function(*arguments), ""
    except Exception as error:  # other contestants are worth having
        text = str(error).strip().partition("\n")[0]
        return None, f"{type(error).__name__}: {text}" if text else type(error).__name__
