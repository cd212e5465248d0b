"""Types of the arguments of ``scripts/benchmark.py``, and their error."""

import argparse
import math


class ArgumentsError(argparse.ArgumentTypeError):
    """An argument that is wrong, or some that do not go together; the message is one line."""


def positive(text):
    """Returns an integer of at least 1."""
    try:
        return _positive(text)
    except ValueError:
        raise ArgumentsError(f"found {text!r}, expected an integer of at least 1") from None


def positives(text):
    """Returns a list of different integers of at least 1 from a text with commas."""
    try:
        numbers = [_positive(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentsError(f"found {text!r}, expected integers of at least 1 with commas") from None
    if len(set(numbers)) < len(numbers):
        raise ArgumentsError(f"found {text!r}, expected each number once")
    return numbers


def _positive(text):
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def amount(text):
    """Returns a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentsError(f"found {text!r}, expected a finite number above 0")
    return number


def add_arch(command, default, networks):
    """Adds ``--arch``, one of some names."""
    command.add_argument("--arch", choices=sorted(networks), default=default, metavar="NAME", help="name of a network")
