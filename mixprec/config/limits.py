"""What values of config keys must fulfil, where several keys ask for the same."""

import math
import re

from mixprec.config.declaration import Limit

POSITIVE = Limit("> 0", lambda value: value > 0)
NOT_NEGATIVE = Limit(">= 0", lambda value: value >= 0)


def at_least(low):
    """Returns the limit of a number that is not below ``low``."""
    return Limit(f">= {low}", lambda value: value >= low)


def matching(pattern, text):
    """Returns the limit of text that a regular expression matches as a whole; ``text`` says so in words."""
    return Limit(f"of the form {text}", lambda value: re.fullmatch(pattern, value) is not None)


def power_of_two(text="from 2^-126 to 2^126", low=2.0**-126, high=2.0**126):
    """Returns the limit of a loss scale; up to these bounds it and its reciprocal are normal float32 numbers."""
    return Limit(
        f"that is a power of two {text}",
        lambda value: low <= value <= high and math.frexp(value)[0] == 0.5,
    )


IMPORT_PATH = Limit("an import path, package.module:function", lambda value: ":" in value)
INTERVAL = matching(r"[1-9][0-9]{0,8} (epochs?|iterations?)", "'N epochs' or 'N iterations'")
