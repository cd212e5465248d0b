"""Errors of data, in one line."""

import contextlib

from mixprec.messages import OneLineError, printable

__all__ = ["DataError", "and_more", "file_errors", "printable"]


class DataError(OneLineError):
    """The data, or how they are to be read, is not usable; the message is one line that names the culprit."""


@contextlib.contextmanager
def file_errors(name, what=""):
    """Around work with a file: an :class:`OSError` becomes a :class:`DataError` with the reason of the system.

    Args:
        name (str): The file, as it is to appear in the message.
        what (str): What is wrong with it, if the reason alone does not say so.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{name}: {what} ({error.strerror})" if what else f"{name}: {error.strerror}") from error


def and_more(count):
    """Returns `` (and 3 more)`` for the first of four."""
    return f" (and {count - 1} more)" if count > 1 else ""
