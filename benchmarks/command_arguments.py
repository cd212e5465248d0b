"""Types of the arguments of ``scripts/benchmark.py``, and their error."""

import argparse

from mixprec.app.commands.command_line import amount, whole

__all__ = ["ArgumentsError", "add_arch", "amount", "positive", "positives"]

positive = whole(1)


class ArgumentsError(argparse.ArgumentTypeError):
    """An argument that is wrong, or some that do not go together; the message is one line."""


def positives(text):
    """Returns a list of different integers of at least 1 from a text with commas."""
    try:
        numbers = [positive(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise ArgumentsError(f"found {text!r}, expected integers of at least 1 with commas") from None
    if len(set(numbers)) < len(numbers):
        raise ArgumentsError(f"found {text!r}, expected each number once")
    return numbers


def add_arch(command, default, networks):
    """Adds ``--arch``, one of some names."""
    command.add_argument("--arch", choices=sorted(networks), default=default, metavar="NAME", help="name of a network")
