"""Paired comparison: mean difference, its confidence interval, and what follows from it."""

import dataclasses
import math
import statistics

#: Percentage points. Fixed before the study was run: a difference in accuracy that does not matter.
MARGIN = 1.0

#: Of the confidence intervals.
LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Paired:
    """Differences between two arms with the same seeds, in percentage points.

    Attributes:
        differences: one a seed.
        mean: their mean.
        sd: their standard deviation with ``n - 1``; ``None`` with one seed.
        low: lower end of the confidence interval of the mean; likewise.
        high: upper end; likewise.
        verdict: what follows, with :data:`MARGIN`.
    """

    differences: tuple[float, ...]
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    verdict: str


def compare(accuracies, reference):
    """Compares accuracies in percent with those of a reference, seed by seed; returns :class:`Paired`.

    The interval is Student's for the mean of paired differences, ``mean +- t(n - 1) * sd / sqrt(n)``. Two arms count as
    equal within the margin only if the whole interval lies within it; a difference that is not significant is not
    enough, as few seeds or noisy ones would show that of anything. In the other direction, an arm counts as worse if
    the whole interval lies below the margin.
    """
    differences = tuple(own - other for own, other in zip(accuracies, reference, strict=True))
    mean, count = statistics.fmean(differences), len(differences)
    if count == 1:
        return Paired(differences, mean, None, None, None, "one seed: no interval")
    sd = statistics.stdev(differences)
    half = t_quantile(count - 1) * sd / math.sqrt(count)
    low, high = mean - half, mean + half
    return Paired(differences, mean, sd, low, high, _verdict(low, high))


def t_quantile(freedom, level=LEVEL):
    """Returns the t that Student's distribution stays within, -t to t, with probability ``level``.

    Args:
        freedom: degrees of freedom, a whole number >= 1.
        level: above 0 and below 1.
    """
    low, high = 0.0, 1.0
    while _probability_within(high, freedom) < level:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _probability_within(middle, freedom) < level else (low, middle)
    return high


def _probability_within(t, freedom):
    """P(-t < T < t), from Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    if freedom % 2:
        term, total = math.cos(angle), 0.0
        for number in range(3, freedom + 1, 2):
            total += term
            term *= square * (number - 1) / number
        return (angle + math.sin(angle) * total) * 2 / math.pi
    term, total = 1.0, 0.0
    for number in range(2, freedom + 1, 2):
        total += term
        term *= square * (number - 1) / number
    return math.sin(angle) * total


def _verdict(low, high):
    if low >= -MARGIN and high <= MARGIN:
        return "within the margin"
    if high < -MARGIN:
        return "worse by more than the margin"
    if low > MARGIN:
        return "better by more than the margin"
    return "not decided"
