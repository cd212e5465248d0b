"""Errors of data, in one line."""

from mixprec.messages import OneLineError, printable

__all__ = ["DataError", "and_more", "printable"]


class DataError(OneLineError):
    """The data, or how they are to be read, is not usable; the message is one line that names the culprit."""


def and_more(count):
    """Returns `` (and 3 more)`` for the first of four."""
    return f" (and {count - 1} more)" if count > 1 else ""
