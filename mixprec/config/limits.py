"""What values of config keys must fulfil, where several keys ask for the same; the numbers are in mixprec.bounds."""

import math
import re

from mixprec.bounds import LARGEST_RATE, LARGEST_SCALE, SMALLEST_RATE, SMALLEST_SCALE
from mixprec.config.declaration import Limit


def between(low, high):
    """Returns the limit of a number, or of each number of a list, from ``low`` to ``high``."""
    return Limit(f">= {low} and <= {high}", lambda value: all(low <= number <= high for number in _numbers(value)))


def below(low, high):
    """Returns the limit likewise, without ``high`` itself."""
    return Limit(f">= {low} and < {high}", lambda value: all(low <= number < high for number in _numbers(value)))


def above(low, high):
    """Returns the limit likewise, without ``low`` itself."""
    return Limit(f"> {low} and <= {high}", lambda value: all(low < number <= high for number in _numbers(value)))


def matching(pattern, text):
    """Returns the limit of text that a regular expression matches as a whole; ``text`` says so in words."""
    return Limit(f"of the form {text}", lambda value: re.fullmatch(pattern, value) is not None)


def power_of_two(text="from 2^-126 to 2^126", low=SMALLEST_SCALE, high=LARGEST_SCALE):
    """Returns the limit of a loss scale, or of a factor of one."""
    return Limit(
        f"that is a power of two {text}",
        lambda value: low <= value <= high and math.frexp(value)[0] == 0.5,
    )


def _numbers(value):
    return value if isinstance(value, tuple) else (value,)


IMPORT_PATH = Limit("an import path, package.module:function", lambda value: ":" in value)
RATE = between(SMALLEST_RATE, LARGEST_RATE)
INTERVAL = matching(
    r"[1-9][0-9]{0,8} (epochs?|iterations?)", "'N epochs' or 'N iterations', with N from 1 to 999999999"
)
