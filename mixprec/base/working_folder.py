"""Paths without a working directory, which may have been removed: absolute paths still work."""

import os
import pathlib

from mixprec.base.messages import OneLineError


class WorkingFolderError(OneLineError):
    """A relative path cannot be resolved, as the working directory is gone; the message is one line with the path."""


def path():
    """Returns the path of the working directory, ``None`` if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def absolute(name):
    """Returns the absolute, normalized form of a path.

    Args:
        name: path.

    Raises:
        WorkingFolderError: the path is relative, and the working directory is gone.
    """
    try:
        return os.path.abspath(name)
    except FileNotFoundError as error:
        wrong = "a relative path, and the working directory is gone; give an absolute path, or change to another folder"
        raise WorkingFolderError(f"{os.fspath(name)}: {wrong}") from error


def real(name):
    """Returns the absolute form of a path with links resolved; otherwise as :func:`absolute`."""
    absolute(name)
    return os.path.realpath(name)


def shown(name):
    """Returns a path for messages: relative to the working directory if it is inside."""
    here, found = path(), pathlib.Path(name)
    return str(found.relative_to(here) if here is not None and found.is_relative_to(here) else found)
