"""Paired comparison: mean difference, its confidence interval, and what follows from it."""

import dataclasses
import math
import statistics

#: Of the confidence intervals.
LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Paired:
    """Differences between two arms with the same seeds, in percentage points.

    Attributes:
        differences: one a seed.
        difference: their mean.
        low: lower end of the confidence interval of the mean; ``None`` with one seed.
        high: upper end, or ``None``.
        verdict: what follows.
    """

    differences: tuple[float, ...]
    difference: float
    low: float | None
    high: float | None
    verdict: str


def compare(accuracies, reference, margin=0.0):
    """Compares accuracies in percent with a reference, seed by seed; returns :class:`Paired`.

    The interval is Student's for the mean of paired differences, ``mean +- t(n - 1) * sd / sqrt(n)``. Two arms count as
    equal within a margin only if the whole interval lies within it; a difference that is not significant is not
    enough, as few seeds or noisy ones would show that of anything. In the other direction, an arm counts as worse if
    the whole interval lies below the margin.
    """
    differences = tuple(own - other for own, other in zip(accuracies, reference, strict=True))
    mean, count = statistics.fmean(differences), len(differences)
    if count == 1:
        return Paired(differences, mean, None, None, "one seed: no interval")
    half = _t_quantile(count - 1) * statistics.stdev(differences) / math.sqrt(count)
    return Paired(differences, mean, mean - half, mean + half, _verdict(mean - half, mean + half, margin))


def _verdict(low, high, margin):
    by = " by more than the margin" if margin else ""
    if high < -margin:
        return f"worse{by}"
    if low > margin:
        return f"better{by}"
    if not margin:
        return "no difference seen"
    return "within the margin" if low >= -margin and high <= margin else "not decided"


def _t_quantile(freedom):
    """Returns the t that Student's distribution stays within, -t to t, with the probability of :data:`LEVEL`.

    Args:
        freedom: degrees of freedom, a whole number >= 1.
    """
    low, high = 0.0, 1.0
    while _probability_within(high, freedom) < LEVEL:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _probability_within(middle, freedom) < LEVEL else (low, middle)
    return high


def _probability_within(t, freedom):
    """P(-t < T < t), from Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for number in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (number - 1) / number
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total
