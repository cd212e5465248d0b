"""The search for the largest image that trains within a budget, for each way, and a common size for all of them."""

import dataclasses
import math

from benchmarks.activations import trial
from benchmarks.activations.ways import MULTIPLE, WAYS

_OF_A_PIXEL = 24  # bytes that no way can do without: images, labels, logits and their gradients
_FIRST = 32  # the first size is this part of the upper bound
_GROWTH = 2.5  # of a size, at the most, from one trial to the next


@dataclasses.dataclass(frozen=True)
class Row:
    """One way.

    Attributes:
        way: its name.
        largest: :class:`~benchmarks.activations.trial.Trial` at the largest size that fits, or ``None``.
        common: at the size that is the largest for the way that reaches least; ``None`` if there is none.
        reason: why the next size does not fit.
    """

    way: str
    largest: trial.Trial | None
    common: trial.Trial | None = None
    reason: str = ""


def measure(setting, *, ways=tuple(WAYS), progress=lambda name, size: None):
    """Searches for the largest size of all ways, and then times them at a common one.

    Args:
        setting: :class:`~benchmarks.activations.ways.Setting`.
        ways: names.
        progress: is called before each trial, with the name of the way and the size.

    Returns:
        list of :class:`Row`.
    """

    def tried(way, size):
        progress(way, size)
        return trial.run(way, setting, size)

    rows = []
    for way in ways:
        fitting, reason = largest(lambda size, way=way: tried(way, size), setting.budget, upper(setting))
        rows.append(Row(way, fitting, reason=reason))
    reached = [row.largest.size for row in rows if row.largest is not None]
    if not reached:
        return rows
    # All of them now, as the machine may have been another one an hour before.
    common = {row.way: tried(row.way, min(reached)) for row in rows if row.largest is not None}
    return [dataclasses.replace(row, common=_fitting(common.get(row.way))) for row in rows]


def _fitting(found):
    return None if found is None or found.reason else found


def upper(setting):
    """Returns a size that is too large for all ways."""
    return MULTIPLE * (2 + math.isqrt(setting.budget // (setting.batch * _OF_A_PIXEL)) // MULTIPLE)


def largest(run, budget, upper):
    """Searches for the largest size that fits.

    Memory grows by a straight line over the pixels, but for small images: a few trials give it, the next ones are near
    the limit.

    Args:
        run: returns the :class:`~benchmarks.activations.trial.Trial` of a size.
        budget: bytes.
        upper: a size that does not fit, a multiple of ``MULTIPLE``.

    Returns:
        ``(trial, reason)``: the trial of the largest size that fits, and why the next one does not; ``(None, reason)``
        if none fits.
    """
    fitting, high, reason = [], upper, "upper bound of the search"
    size, step = max(MULTIPLE, upper // _FIRST // MULTIPLE * MULTIPLE), MULTIPLE
    while True:
        found = run(size)
        if found.reason:
            high, reason = size, found.reason
        else:
            fitting.append(found)
        low = fitting[-1].size if fitting else 0
        if high - low <= MULTIPLE:
            return (fitting[-1] if fitting else None), reason
        guess = _guess(fitting, budget) if fitting and high == upper else 0
        if guess > low + MULTIPLE:
            size = min(guess, high - MULTIPLE)
        else:  # look around in steps that grow, up to where the answer is known
            size += -step if found.reason else step
            step *= 2
            if not low < size < high:
                size = (low + high) // 2 // MULTIPLE * MULTIPLE


def _guess(fitting, budget):
    """Returns the size at which a way will take a budget, if that is not much larger than the last one."""
    last = fitting[-1]
    pixels, memory = (0, last.before) if len(fitting) < 2 else (fitting[-2].size ** 2, fitting[-2].least)
    rate = max(1.0, (last.least - memory) / (last.size**2 - pixels))
    wanted = last.size**2 + (budget - last.least) / rate
    return int(min(math.isqrt(max(0, int(wanted))), _GROWTH * last.size)) // MULTIPLE * MULTIPLE
