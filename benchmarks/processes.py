"""Processes for measurements: what one has imported, changed or allocated is not another's."""

import ctypes
import math
import multiprocessing
import pickle
import signal
import time

from mixprec.base.interruption import for_parent_only

_DIED = "its process died: a crash, or the memory of the machine was not enough"
_GRACE = 10.0  # seconds in which a process that is not wanted any more may end by itself
_PR_SET_PDEATHSIG = 1  # of Linux' prctl
_parent = []  # the connection to it, in a process of a Worker


class Worker:
    """A process of one's own; it starts at once, and ends with the ``with`` block or by :meth:`end`.

    It is killed with the process that has made it, whatever that dies of, and takes no notice of Ctrl-C, which that one
    gets, too.

    Attributes:
        progress: what the function that runs there, or has run last, has said by :func:`report`; ``""`` for nothing.
    """

    def __init__(self):
        self.progress = ""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,))
        with for_parent_only():
            self._process.start()
            theirs.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        self.end(0.0 if kind else _GRACE)

    def call(self, function, *arguments):
        """Calls a function at the top of a module there; returns what it returns, raises what it raises."""
        result, error = self._ask(function, arguments, None)
        if error is not None:
            raise error
        return result

    def attempt(self, function, *arguments, limit=None):
        """Calls a function at the top of a module there, which may fail.

        Args:
            function: what to call.
            *arguments: of it.
            limit: seconds, after which the process is killed; ``None`` for none.

        Returns:
            ``(result, reason)``: what the function has returned, and ``""``; or ``None``, and in one line why not, with
            the progress of a process that was killed or has died.
        """
        try:
            result, error = self._ask(function, arguments, limit)
        except TimeoutError:
            self.end(0.0)
            return None, self._with_progress(f"no answer within {limit:g} s")
        except (EOFError, OSError):
            return None, self._with_progress(_DIED)
        return result, reason_of(error)

    def end(self, grace=_GRACE):
        """Ends the process, by force if it does not do so by itself; what it holds is free then.

        Args:
            grace: seconds for that.
        """
        self._connection.close()
        self._process.join(grace)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_GRACE)  # one that hangs in a driver may stay for ever

    def _ask(self, function, arguments, limit):
        self.progress = ""
        self._connection.send((function, arguments))
        end = math.inf if limit is None else time.monotonic() + limit
        while True:
            if not self._connection.poll(None if limit is None else max(0.0, end - time.monotonic())):
                raise TimeoutError
            answer = self._connection.recv()
            if not isinstance(answer, str):
                return answer
            self.progress = answer

    def _with_progress(self, reason):
        return f"{reason}; it had come to: {self.progress}" if self.progress else reason


def report(text):
    """Says how far the function is that runs in the process of a :class:`Worker`; elsewhere it does nothing.

    Args:
        text: one line.
    """
    for connection in _parent:
        connection.send(text)


def reason_of(error):
    """Returns an exception as one line, nothing for ``None``."""
    if error is None:
        return ""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def serve(connection):
    """Does what it is asked on a connection until the other end is gone; the process of a :class:`Worker` runs it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _parent[:] = [connection]
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, ConnectionError):
            return
        except Exception as error:  # what was sent cannot be read here
            connection.send((None, error))
            continue
        try:
            answer = function(*arguments), None
        except Exception as error:  # other rows are worth having
            answer = None, error
        try:
            data = pickle.dumps(answer)
            pickle.loads(data)  # exceptions with arguments of their own often cannot
        except Exception:
            data = pickle.dumps((None, RuntimeError(reason_of(answer[1]) or f"{type(answer[0]).__name__} as a result")))
        try:
            connection.send_bytes(data)
        except ConnectionError:
            return
