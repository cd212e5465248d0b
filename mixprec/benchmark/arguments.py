"""What the arguments of ``scripts/benchmark.py`` have in common."""

import argparse
import math


class ArgumentsError(ValueError):
    """Arguments that do not go together; the message is one line."""


def positive(text):
    """Returns an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {number}, expected at least 1")
    return number


def positives(text):
    """Returns a list of integers of at least 1 from a text with commas."""
    return [positive(part) for part in text.split(",")]


def amount(text):
    """Returns a finite number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}, expected a finite number above 0")
    return number


def add_command(commands, function, name, text):
    """Adds a command whose numbers can be written to a file; returns its parser.

    Args:
        commands: what ``add_subparsers`` has returned.
        function: called with ``save``, which writes a record to the file if there is to be one, and the arguments.
        name: of the command.
        text: what it does.
    """
    command = commands.add_parser(name, help=text)
    command.set_defaults(function=function)
    command.add_argument("--json", metavar="FILE", help="write the numbers there, too")
    return command


def add_arch(command, default, networks):
    """Adds ``--arch``, one of some names."""
    command.add_argument("--arch", choices=sorted(networks), default=default, metavar="NAME", help="name of a network")
