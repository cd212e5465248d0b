"""Errors of data, in one line."""

import contextlib
import os

from mixprec.base.messages import OneLineError, printable

__all__ = ["DataError", "and_more", "file_errors", "printable"]


class DataError(OneLineError):
    """The data, or how they are to be read, is not usable; the message is one line that names the culprit."""


@contextlib.contextmanager
def file_errors(name, what=""):
    """Around work with a file: an :class:`OSError` becomes a :class:`DataError` with the reason of the system.

    Args:
        name (path): The file, or what in it, for the message.
        what (str): What is wrong with it, if the reason alone does not say so.
    """
    try:
        yield
    except OSError as error:
        reason = f"{what} ({error.strerror})" if what else error.strerror
        raise DataError(f"{printable(os.fspath(name))}: {reason}") from error


def and_more(count, others=()):
    """Returns `` (and 3 more)`` for the first of four, with the names of up to nine others if they are given."""
    names = f": {', '.join(others[:9])}{', ...' if len(others) > 9 else ''}" if others else ""
    return f" (and {count - 1} more{names})" if count > 1 else ""
