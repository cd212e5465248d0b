"""The files that the commands of ``scripts/benchmark.py`` write: refused before hours are measured, not afterwards."""

import contextlib
import json
import os
import pathlib
import tempfile

from benchmarks.command_arguments import ArgumentsError
from mixprec.base import files


class WriteError(Exception):
    """A file could not be written; the message is one line."""


class Record:
    """The JSON file of a command, if there is one.

    Args:
        path: a path, or ``None`` for no file.

    Attributes:
        path: the same.
        is_written: whether the file is there.
        otherwise: what is left of a command that is interrupted before that.
    """

    def __init__(self, path):
        self.path, self.is_written, self.otherwise = path, False, "nothing is saved"

    def __call__(self, record):
        """Writes a dict, in the place of what was written before.

        Raises:
            WriteError: it cannot be written.
        """
        if self.path is not None:
            with writing(self.path):
                files.write_text(self.path, json.dumps(record, indent=2) + "\n")
            self.is_written = True


def add_command(commands, function, name, text, json="write the numbers there, too"):
    """Adds a command whose numbers can be written to a file; returns its parser.

    Args:
        commands: what ``add_subparsers`` has returned.
        function: called with ``save``, a :class:`Record`, and the arguments.
        name: of the command.
        text: what it does.
        json: what is written to the file.
    """
    command = commands.add_parser(name, help=text)
    command.set_defaults(function=function)
    command.add_argument("--json", type=json_file, metavar="FILE", help=json)
    return command


def json_file(text):
    """Returns the path of a JSON file that can be written.

    Raises:
        ArgumentsError: it has another suffix, is a folder, or its folder is none or takes no files.
    """
    return _checked(text, ".json")


def markdown_file(text):
    """Returns the path of a page of Markdown, checked in the same way."""
    return _checked(text, ".md")


@contextlib.contextmanager
def writing(path):
    """Makes an ``OSError`` of the block a :class:`WriteError` about a file."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror or error}") from error


def _checked(text, *suffixes):
    path = pathlib.Path(text)
    if not str(text).endswith(suffixes) or path.suffix not in suffixes:
        raise ArgumentsError(f"found {str(text)!r}, expected a name that ends in {' or '.join(suffixes)}")
    if os.path.isdir(path):
        raise ArgumentsError(f"{path} is a folder")
    if not os.path.isdir(path.parent):  # nor if it is too long for a name
        raise ArgumentsError(f"{path.parent} is no folder")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ArgumentsError(f"{path.parent} takes no files: {error.strerror or error}") from None
    return path
