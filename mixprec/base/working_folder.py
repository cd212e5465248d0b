"""The working directory, which may have been removed while a shell was in it: absolute paths do not need it."""

import os
import pathlib

from mixprec.base.messages import OneLineError


class WorkingFolderError(OneLineError):
    """A relative path, and no working directory that it is relative to; the message is one line and names the path."""


def path():
    """Returns the path of the working directory, ``None`` if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def absolute(name):
    """Returns a path as an absolute one, without ``..`` and the like.

    Args:
        name: path.

    Raises:
        WorkingFolderError: it is relative, and the working directory is gone.
    """
    try:
        return os.path.abspath(name)
    except FileNotFoundError as error:
        wrong = "a relative path, and the working directory is gone; give an absolute path, or change to another folder"
        raise WorkingFolderError(f"{os.fspath(name)}: {wrong}") from error


def real(name):
    """Returns a path as an absolute one without links; otherwise as :func:`absolute`."""
    absolute(name)
    return os.path.realpath(name)


def shown(name):
    """Returns a path for messages: relative to the working directory if it lies in there."""
    here, found = path(), pathlib.Path(name)
    return str(found.relative_to(here) if here is not None and found.is_relative_to(here) else found)
