"""What the server prints about errors: each kind once, and not at any length."""

import logging

from mixprec.messages import one_line

_LOGGERS = ("asyncio", "engineio.server", "nicegui", "socketio.server", "uvicorn.error")
_LONGEST = 4000  # characters of a traceback, of which the end is kept


class Once(logging.Filter):
    """Lets the first message of each kind pass, shortened: what is wrong with one request may come with each.

    Messages are of a kind if they come from the same line of a program, and errors if they were raised in the same one.
    """

    def __init__(self):
        super().__init__()
        self._seen = set()

    def filter(self, record):
        if record.levelno < logging.WARNING:
            return True
        kind = record.name, record.pathname, record.lineno
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            kind = record.name, type(error).__name__, *_place(error.__traceback__)
            text = logging.Formatter().formatException(record.exc_info)
            record.exc_text = text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"
        if kind in self._seen:
            return False
        self._seen.add(kind)
        record.msg, record.args = f"{one_line(record.getMessage())} (once; more of this kind are not printed)", ()
        return True


def install():
    """Limits what the loggers of the server print; called once."""
    once = Once()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(once)


def _place(frames):
    """Returns the file and line in which an error was raised."""
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return (None, None) if frames is None else (frames.tb_frame.f_code.co_filename, frames.tb_lineno)
