"""The protocol of a work process: a request in, lines of JSON out, and an answer or an error as the last one.

``python -m mixprec.app.monitor.work`` calls :func:`main`.
"""

import json
import os
import resource
import signal
import sys
import traceback

from mixprec.app.finished import json_lines
from mixprec.app.monitor.work import links
from mixprec.app.monitor.work.fields import RequestError, parse
from mixprec.base.messages import OneLineError, one_line

BAD, FAILED = 2, 1  # exit codes
_LARGEST = 32 << 20  # bytes of a request: an upload of 20 MB in base64, and further fields
_GRACE = 10  # seconds of processor time between the ends of a task and of its process


class Ended(BaseException):
    """A signal ends the task. It is not an ``Exception``, so that no code handles it as an error."""

    def __init__(self, reason, code):
        super().__init__(reason)
        self.code = code


class ReaderGone(Exception):
    """The reader of the answer is gone."""


def main(argv, tasks):
    """Runs one task between standard input and standard output.

    The last line on standard output is the answer, or ``{"error": one line}``. Lines before it are
    ``{"progress": 0 to 1, "text": ...}``. Whatever else is printed goes to standard error.

    Args:
        argv: command-line arguments, without the program's name: the name of a task.
        tasks: dict from name to :class:`mixprec.app.monitor.work.tasks.Task`.

    Returns:
        int: exit code. 0: an answer. 2: bad input, or memory or processor time are used up. 1: an unexpected error,
        with its traceback on standard error; or the reader is gone. 128 plus its number: a signal has ended it.
    """
    lines = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def write(value):
        try:
            lines.write(json_lines.line(value) + "\n")
            lines.flush()
        except OSError as error:
            raise ReaderGone from error

    for number in (signal.SIGTERM, signal.SIGINT):
        raise_at(number, f"ended by {number.name}", 128 + number)
    if argv and argv[0] in tasks:
        _limit(argv[0], tasks[argv[0]].seconds)
    try:
        return serve(argv, tasks, sys.stdin.buffer, write)
    except ReaderGone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, lines.fileno())  # otherwise the rest of the buffer causes a traceback at the end
        os.close(nowhere)
        return FAILED


def serve(argv, tasks, source, write):
    """Runs one task, and writes its answer or its error.

    Args:
        argv: as for :func:`main`.
        tasks: as for :func:`main`.
        source: binary file with the request.
        write: called with each line, a dict.

    Returns:
        int: as :func:`main` returns.
    """
    try:
        answer, code = _answer(argv, tasks, source, write), 0
    except Ended as ended:
        answer, code = {"error": str(ended)}, ended.code
    except OneLineError as error:
        answer, code = {"error": str(error)}, BAD
    except MemoryError as error:
        answer, code = {"error": one_line(f"memory is full: {error}".removesuffix(": "))}, BAD
    except OSError as error:
        answer, code = {"error": _of_system(error)}, BAD
    except ReaderGone:
        raise
    except Exception as error:
        traceback.print_exc()
        answer, code = {"error": _unexpected(error)}, FAILED
    write(answer)
    return code


def _answer(argv, tasks, source, write):
    if len(argv) != 1 or argv[0] not in tasks:
        raise RequestError(f"found {' '.join(argv) or 'no task'}; wanted: one of {', '.join(tasks)}")
    task = tasks[argv[0]]
    request = parse(argv[0], _read(argv[0], source), task.fields)
    with links.not_followed(request):
        return task.run(request, lambda share, text: write({"progress": share, "text": text}))


def raise_at(number, reason, code):
    """From here on the first signal of a kind raises :class:`Ended`; the second ends the process at once.

    Except SIGXCPU, which comes again for each second of the remaining work.
    """

    def end(number, frame):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGXCPU else signal.SIG_DFL)
        raise Ended(reason, code)

    signal.signal(number, end)


def _limit(name, seconds):
    """Limits the processor time of this process, imports included."""
    if seconds is None:
        return
    raise_at(signal.SIGXCPU, f"{name}: more than {seconds} s of processor time", BAD)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = seconds + _GRACE  # here the system kills the process, if the signal had no effect
    hard = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_CPU, (min(seconds, hard), hard))


def _read(name, source):
    content = source.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise RequestError(f"{name}: a request of more than {_LARGEST >> 20} MiB; wanted: a smaller one")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name}: standard input is not JSON ({type(error).__name__}); wanted: an object") from error


def _of_system(error):
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else None
    reason = error.strerror or f"{type(error).__name__}: {error}"
    return one_line(f"{name}: {reason}" if name else reason)


def _unexpected(error):
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return one_line(f"{type(error).__name__}: {' '.join(str(error).split())} ({frame.filename}, line {frame.lineno})")
