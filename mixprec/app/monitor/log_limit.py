"""Limits of the errors that the server prints: each kind once, with limited length."""

import logging
import os
import traceback

from mixprec.base.messages import one_line

_LOGGERS = ("asyncio", "engineio.server", "nicegui", "socketio.server", "uvicorn.error")
_LONGEST = 300  # characters of a message
_FRAMES = 20  # of a traceback, the last ones
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_AROUND = ("access.py", "clients.py")  # code that handles all requests


class Once(logging.Filter):
    """Lets the first message of each kind pass, shortened: the fault of one request may repeat with each.

    Messages are of the same kind if they come from the same line of a program, and errors if they were raised in the
    same line. An error has a traceback if it involves code of mixprec. Otherwise a browser has sent something that
    NiceGUI does not expect, such as half of a message.
    """

    def __init__(self):
        super().__init__()
        self._seen = set()

    def filter(self, record):
        if record.levelno < logging.WARNING:
            return True
        kind, text = (record.name, record.pathname, record.lineno), one_line(record.getMessage(), _LONGEST)
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            said = one_line(f"{type(error).__name__}: {error}", _LONGEST)
            where = (frames[-1].filename, frames[-1].lineno) if frames else ("", 0)
            kind = record.name, type(error).__name__, *where
            record.exc_info = None
            if any(map(_is_ours, frames)):
                text += f"\n{''.join(traceback.format_list(frames[-_FRAMES:]))}{said}"
            else:
                text = f"{said} ({where[0]}, line {where[1]})"
        record.stack_info = None
        if kind in self._seen:
            return False
        self._seen.add(kind)
        record.msg, record.args = f"{text} (more of this kind are not printed)", ()
        return True


def _is_ours(frame):
    return frame.filename.startswith(_OURS) and os.path.basename(frame.filename) not in _AROUND


def install():
    """Limits the output of the server's loggers; called once."""
    once = Once()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(once)
