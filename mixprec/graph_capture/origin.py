"""Finds the line of the user's code to name when something cannot be captured.

:mod:`~mixprec.graph_capture.watch` records a line with each request of a watched step, and
:mod:`~mixprec.graph_capture.specialization` turns an exception in a capture into a message.
"""

import linecache
import traceback

import chainer

from mixprec.base.announcements import is_of
from mixprec.base.messages import text_of

# Packages and modules that are not the user's code; a simulated GPU adds itself.
LIBRARIES = {"mixprec", "chainer", "cupy", "cupyx", "cupy_backends", "numpy", "contextlib", "functools"}
# Parts of CuPy's messages while a stream captures, and their meanings.
_MEANINGS = {
    "synchronous API": "the host waits for the device",
    "D2H transfers": "the host reads from the device",
    "H2D transfers": "host data is copied to the device, and a graph would copy the same data again",
}


def line_of(frame):
    """Returns file, number and text of the innermost line of the user's code on the stack.

    Args:
        frame: the innermost frame to consider.

    Returns:
        str: ``'model.py:12 "h = float(x.array)"'``; empty if there is no such line.
    """
    while frame is not None:
        if _is_users(frame):
            return _described(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def cause_of(error):
    """Returns the message of an exception, with the user's line and the function of Chainer, in one line.

    This removes the traceback of the exception: its frames hold the arrays of the step, and locals that were read from
    a frame hold the exception.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    lines = [_described(frame.f_code.co_filename, line) for frame, line in frames if _is_users(frame)]
    nodes = [frame.f_locals.get("self") for frame, _ in frames]
    names = [type(node).__name__ for node in nodes if isinstance(node, chainer.FunctionNode)]
    error.__traceback__ = None
    text = " ".join(text_of(error).split()) or type(error).__name__
    for cause, meaning in _MEANINGS.items():
        if cause in text:
            text = f"{meaning} ({text})"
    where = ": ".join([*lines[-1:], *names[-1:]])
    return f"{where}: {text}" if where else text


def _is_users(frame):
    return not is_of(frame.f_globals.get("__name__", ""), LIBRARIES)


def _described(file, line):
    return f'{file}:{line} "{linecache.getline(file, line).strip()}"'
