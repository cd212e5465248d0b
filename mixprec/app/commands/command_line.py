"""Parts that the commands share: their argument parser, types of arguments, and their errors."""

import argparse
import functools
import math
import re
import sys
import textwrap

from mixprec.base.installation import install_hint
from mixprec.base.messages import hint, nearest, one_line
from mixprec.base.standard_streams import bars_are_off
from mixprec.base.vocabulary import meant


class _Help(argparse.HelpFormatter):
    """Leaves paths in one piece, also those that are longer than a line."""

    def _split_lines(self, text, width):
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on standard error, with exit code 2."""

    def __init__(self, **options):
        super().__init__(formatter_class=functools.partial(_Help, max_help_position=32), **options)

    def parse_known_args(self, args=None, namespace=None):
        """Parses as ``argparse`` does, with better errors for some mistakes.

        Before Python 3.13 ``argparse`` makes an empty list of ``--out=--``. For ``--set optimizer.lr 0.1`` it would
        name only the ``0.1``, and it does not say that each KEY=VALUE needs its ``--set``. It names a missing option
        before a misspelled one.
        """
        args = self._given = sys.argv[1:] if args is None else list(args)
        sets = [a.option_strings[0] for a in self._actions if str(a.metavar).endswith("KEY=VALUE")]
        options = args[: args.index("--")] if "--" in args else args
        for text, following in zip(options, [*options, ""][1:], strict=True):
            option, equals, value = text.partition("=")
            if option.startswith("-") and equals and value == "--":
                self.error(f"argument {option}: found '--', expected a value")
            if sets and text in sets and "=" not in following and re.match(r"\w+\.\w", following):
                self._refuse_pair(text, following, options)
            if option.startswith("--") and len(option) > 2 and not self._has(option):
                near = self._near(option, value or following, sets)
                if near:
                    self.error(f"unrecognized argument: {option}{hint(near)}")
        namespace, rest = super().parse_known_args(args, namespace)
        for option in sets:
            for text in rest:
                if re.match(r"\w+\.[\w.]+=", text):
                    self.error(f"unrecognized argument: {text}{hint(f'{option} {text}')}")
        return namespace, rest

    def _refuse_pair(self, option, text, args):
        """Refuses what follows ``--set`` without a ``=``; the value may come after a colon or a space."""
        after = args[args.index(text) + 1 :]
        key, colon, value = text.partition(":")
        value = value if colon else after[0] if after and not after[0].startswith("--") else ""
        near = f"{option} {key}={value}" if value else None
        self.error(f"{option} takes SECTION.KEY=VALUE; found {text!r}{hint(near)}")

    def _has(self, option):
        names = self._option_string_actions
        abbreviates = self.allow_abbrev and any(name.startswith(option) for name in names)
        return option in names or abbreviates or self._subparsers is not None

    def _near(self, option, value, sets):
        """Returns what an unknown option most likely means: one of this command, or a key of the config."""
        near = nearest(option.replace("_", "-"), self._option_string_actions, 0.7)
        if near is None and sets:
            from mixprec.app.config.loader import key_of_name

            key = key_of_name(option[2:].replace("-", "_"))
            near = key and f"{sets[0]} {key}={value if value and not value.startswith('-') else 'VALUE'}"
        return near

    def _check_value(self, action, value):
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = nearest(value, action.choices) if isinstance(value, str) else None
            error.message += hint(near)
            raise

    def add_path(self, name, metavar, help, kind=None, **more):
        """Adds a path that is not empty; ``kind`` is as for :func:`path`, by default a file if the metavar is FILE."""
        kind = kind or ("a file" if metavar == "FILE" else "a folder")
        self.add_argument(name, metavar=metavar, type=path(kind), help=help, **more)

    def add_repeated(self, option, metavar, help):
        """Adds an option that may be repeated, a list; its help says so."""
        self.add_argument(option, action="append", default=[], metavar=metavar, help=f"{help}; may be repeated")

    def error(self, message):
        """Prints the message and exits."""
        missing, given = message.partition(" are required: ")[2].split(", ")[0], getattr(self, "_given", None)
        if missing.startswith("--") and given and not given[0].startswith("-"):
            message += hint(f"{missing} {given[0]}")
        print(f"error: {one_line(message)} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def parser_of(command, description, usage=None):
    """Returns the parser of a command of ``mixprec``, which takes no abbreviations of options."""
    return Parser(prog=f"mixprec {command}", usage=usage, description=description, allow_abbrev=False)


def failed(error, status=2):
    """Prints one line about an error on standard error, and returns the exit code ``status``.

    Args:
        error: a message, or an exception; a ``MemoryError`` has no message of its own.
        status (int): exit code.
    """
    print(f"error: {one_line(error) or 'memory is full'}", file=sys.stderr)
    return status


def not_installed(error, extra):
    """As :func:`failed`, for a ``ModuleNotFoundError`` that an extra of mixprec would have prevented."""
    return failed(f"{error.name} is not installed: {install_hint(extra)}")


def first_line(docstring):
    """Returns the first line of a script's docstring, for ``--help``; ``None`` without one, as with ``python -OO``."""
    return None if docstring is None else docstring.strip().partition("\n")[0]


def add_choice(parser, option, words, synonyms, **more):
    """Adds an option with the words of :mod:`mixprec.base.vocabulary` as choices, which may be given by synonyms."""
    parser.add_argument(option, type=lambda text: meant(text, words, synonyms), choices=words, **more)


def add_run(parser, required=True):
    """Adds the option ``--run``; :func:`mixprec.app.finished.finished_run.newest_run` finds the run that is meant."""
    parser.add_path("--run", "DIR", "results folder of a run, or of several: the newest", required=required)


def path(kind):
    """Returns an ``argparse`` type: a path that is not empty, unlike the value of an unset variable of a shell.

    Args:
        kind (str): the kind of the path, for the message: ``"a folder"``.
    """

    def given(text):
        if not text:
            raise argparse.ArgumentTypeError(f"it is empty; give {kind}")
        return text

    return given


def whole(least):
    """Returns an ``argparse`` type: a whole number that is not smaller than ``least``."""

    def given(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"found {text!r}; wanted: a whole number from {least} on")
        return int(text)

    return given


def amount(text):
    """An ``argparse`` type: a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a finite number above 0")
    return number


def progress_bar(what, images):
    """Returns a ``tqdm`` bar over a number of images that is shown after two seconds, and only on a terminal."""
    from tqdm import tqdm  # takes a moment: most commands that are called show none

    return tqdm(total=images, desc=what, unit="img", delay=2, leave=False, disable=bars_are_off())
