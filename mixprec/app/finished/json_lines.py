"""Lines of JSON that any program can read: valid UTF-8, one line each, without NaN."""

import json
import math

from mixprec.base.messages import printable


def clean(value):
    """Returns a value in the types of JSON.

    Texts become printable: other characters, such as a line break or half a surrogate pair, become escapes. NaN and
    infinities, which JSON lacks, become None.

    Args:
        value: None, bool, int, float, str, list, tuple, or dict with str or int as keys, of these.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {printable(str(key)): clean(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(each) for each in value]
    return value


def line(value):
    """Returns a value as one line of JSON in ASCII, without the line break."""
    return json.dumps(clean(value), allow_nan=False)
