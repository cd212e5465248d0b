"""Memory budgets: a number of bytes, a size with a unit, or a fraction of the device's memory."""

import numbers
import re

from mixprec.base.messages import OneLineError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000 ** (power + 1) for power, prefix in enumerate("kmgt")}
_UNITS |= {f"{prefix}ib": 1024 ** (power + 1) for power, prefix in enumerate("kmgt")}
SMALLEST, LARGEST = 1 << 16, 1 << 50  # bytes; small numbers are probably meant as fractions
_WANTED = (
    'a size such as "16 GB" or "500 MiB", a number of bytes, or a fraction of the memory between 0 and 1; a size is '
    "from 64 KiB to 1024 TiB"
)


def check_budget(budget):
    """Returns a budget as a number: bytes, or if below 1, a fraction of the device's memory.

    Args:
        budget: such as ``"16 GB"``, ``"500 MiB"``, ``16e9`` or ``0.8``. GB are 10^9 bytes, GiB 2^30.

    Raises:
        OneLineError: the budget is invalid.

    Example:
        >>> check_budget("1.5 GiB"), check_budget(0.8)
        (1610612736, 0.8)
    """
    number = budget
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e[0-9]+)?\s*([a-z]*)\s*", budget.lower())
        if found is None or found[3] not in _UNITS:
            raise OneLineError(f"budget must be {_WANTED}; found {budget!r}")
        number = float(found[1] + (found[2] or "")) * _UNITS[found[3]]
    is_share = isinstance(number, numbers.Real) and 0 < number < 1
    if isinstance(number, bool) or not (is_share or _is_size(number)):
        raise OneLineError(f"budget must be {_WANTED}; found {budget!r}")
    return float(number) if is_share else int(number)


def _is_size(number):
    return isinstance(number, numbers.Real) and SMALLEST <= number <= LARGEST


def in_bytes(budget, total):
    """Returns a budget from :func:`check_budget` in bytes, for a device with ``total`` bytes."""
    return int(budget * total) if budget < 1 else budget


def is_budget(budget):
    """Whether :func:`check_budget` accepts a value."""
    try:
        check_budget(budget)
    except OneLineError:
        return False
    return True
