"""Errors of data, in one line."""

import contextlib
import os

from mixprec.base.messages import OneLineError, printable

__all__ = ["DataError", "and_more", "file_errors", "printable"]


class DataError(OneLineError):
    """The data, or the settings for reading them, are not usable; the message is one line that names the cause.

    Example:
        >>> from mixprec.data import DataError, open_images
        >>> try:
        ...     open_images("/no/such/folder")
        ... except DataError as error:
        ...     print(error)
        /no/such/folder: no such file or folder
    """


@contextlib.contextmanager
def file_errors(name, what=""):
    """Surrounds work with a file: an :class:`OSError` becomes a :class:`DataError` with the reason of the system.

    Args:
        name (path): The file, or a part of it, for the message.
        what (str): The fault, if the reason alone is not clear.
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
