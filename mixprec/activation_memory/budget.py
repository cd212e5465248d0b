"""Budgets of memory: a number of bytes, with a unit, or a share of what a device has."""

import numbers
import re

from mixprec.base.messages import OneLineError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000 ** (power + 1) for power, prefix in enumerate("kmgt")}
_UNITS |= {f"{prefix}ib": 1024 ** (power + 1) for power, prefix in enumerate("kmgt")}
SMALLEST, LARGEST = 1 << 16, 1 << 50  # bytes; 1 is meant as a share
_WANTED = (
    'a size such as "16 GB" or "500 MiB", a number of bytes, or a share of the memory above 0 and below 1; a size is '
    "from 64 KiB to 1024 TiB"
)


def check_budget(budget):
    """Returns a budget as a number: of bytes, or below 1, a share of the memory of the device.

    Args:
        budget: such as ``"16 GB"``, ``"500 MiB"``, ``16e9`` or ``0.8``. GB are 10^9 bytes, GiB 2^30.

    Raises:
        OneLineError: it is none of these.

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
    """Returns a budget from :func:`check_budget` in bytes, of a device with so many bytes in all."""
    return int(budget * total) if budget < 1 else budget


def is_budget(budget):
    """Whether :func:`check_budget` takes it."""
    try:
        check_budget(budget)
    except OneLineError:
        return False
    return True
