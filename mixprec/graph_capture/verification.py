"""Comparing a launch of a new graph with an eager step from the same state.

:class:`~mixprec.graph_capture.specialization.Specialization` uses it in the calls that compare. ``docs/capture.md`` has
the reasons for the bounds, and which faults they find.
"""

import logging
from typing import NamedTuple

import chainer
import numpy as np
from chainer.backends import cuda

from mixprec.backends.memory import flat, is_dense
from mixprec.backends.transfers import to_host
from mixprec.graph_capture.reports import copied

_CHANGE = 0.25  # of what the step adds to an array: two results may be so far apart
# Some engines of cuDNN add in another order each time, and gradients of a deep network that is not trained yet, or has
# learnt its batch by heart, then differ from run to run by as much as they are. So a launch and an eager step may also
# be some times as far apart as launches are among themselves, or eager steps are, whichever is more.
_APART = 4
# But if the ones are so many times further apart than the others, they do not repeat the same step with other rounding:
# a graph that leaves out a gradient has the same momentum in each launch.
_UNLIKE = 64
_UNITS = 2  # in the last place of FP32: numbers that are so close are equal
_VALUE = 2.0**-8  # of losses and reported values, relative: a forward pass is nearly the same bits
_log = logging.getLogger("mixprec")


class Outcome(NamedTuple):
    """The results of a step, and the arrays that it moved.

    Attributes:
        values: ``[(name, array or number)]``: its results.
        arrays: dict from names to the arrays that it moves, those without gaps flat, or copies of them.
    """

    values: list
    arrays: dict


class Runs(NamedTuple):
    """Runs of the same kind: eager steps, or launches of a graph.

    Attributes:
        outcome: the :class:`Outcome` of one of them, in copies.
        apart: what :meth:`Verification.apart` has returned of all of them; empty if no two are compared.
    """

    outcome: Outcome
    apart: dict


class Verification:
    """Compares several runs of a step that begin from the same state.

    Args:
        arrays: dict from names to the arrays that the step moves, all of them.
        bitwise: whether outcomes must be the same bit for bit; otherwise within bounds.
        course: names of those arrays that say which of several ways the step has gone.

    Attributes:
        bitwise: see above.
    """

    def __init__(self, arrays, bitwise, course=()):
        # CuPy goes through an array in the order of its axes: through a filter, strided, unless it is seen as flat.
        self._arrays = {name: flat(array) if is_dense(array) else array for name, array in arrays.items()}
        self.bitwise, self._course = bitwise, course
        self._before = _copies(self._arrays)

    def outcome(self, values):
        """Returns the :class:`Outcome` of the last run, with ``[(name, value)]`` of its results, in copies."""
        return Outcome([(name, copied(value)) for name, value in values], _copies(self._arrays))

    def now(self, values):
        """Returns the same without copies, valid until the next run."""
        return Outcome(values, self._arrays)

    def turn_back(self):
        """Goes back to the state before the step."""
        self._put(self._before)

    def take(self, outcome):
        """Goes on from what a step has left."""
        self._put(outcome.arrays)

    def same_course(self, found, expected):
        """Returns whether two runs went the same way; the host waits for the device."""
        return all(_same_bits(*map(_on_host, (found.arrays[name], expected.arrays[name]))) for name in self._course)

    def apart(self, first, before):
        """Returns how far runs of the same kind are apart; the host waits for the device.

        Args:
            first: the :class:`Outcome` of the first one, in copies; the last one has left what is there now.
            before: what this returned of those in between; ``{}`` for none.

        Returns:
            dict from the names of arrays in FP32 or wider to the norm of the difference of the first run and the one
            that is furthest from it, 0 where that is not finite. A run that went another way than the first, as only
            one of them has overflowed, does not count.
        """
        if not self.same_course(first, self.now([])):
            return before
        return {
            name: max(_distance(_on_host(array), _on_host(first.arrays[name])), before.get(name, 0.0))
            for name, array in self._arrays.items()
            if _is_bounded(array)
        }

    def compared(self, launches, eager):
        """Compares launches of a graph with eager steps; the host waits for the device.

        Args:
            launches, eager: :class:`Runs`.

        Returns:
            ``(difference, is_likely)``: see :meth:`difference`; and whether it is likely where bits vary from run to
            run, as only one of launch and eager step has overflowed, or a reported value is another one.
        """
        noise = noise_of(eager, launches)
        found, expected = launches.outcome, eager.outcome
        reason = self.difference(found, expected, noise)
        is_likely = noise is None or not self.same_course(found, expected)
        return reason, is_likely or self.difference_of_values(found, expected) is not None

    def difference(self, found, expected, noise=None):
        """Returns the differences between two outcomes, as text; the host waits for the device.

        The text is about the first one. All of them are logged, at the level INFO.

        Args:
            found: :class:`Outcome` of the graph.
            expected: that of an eager step.
            noise: dict from names to a distance that says nothing, see :func:`noise_of`; ``None`` for none.

        Returns:
            str, or ``None``.
        """
        reason = self.difference_of_values(found, expected)
        if reason is not None:
            return reason
        reasons = [
            f"{name} {why}"
            for name, array in found.arrays.items()
            if (why := self._difference_of(name, array, expected.arrays[name], (noise or {}).get(name, 0.0)))
        ]
        for reason in reasons:
            _log.info("graph and eager step: %s", reason)
        return f"{reasons[0]}; {len(reasons)} of {len(found.arrays)} arrays differ" if reasons else None

    def difference_of_values(self, found, expected):
        """Returns the same of the reported values alone."""
        if [name for name, _ in found.values] != [name for name, _ in expected.values]:
            return "other values are reported by the graph than by an eager step"
        for (name, ours), (_, theirs) in zip(found.values, expected.values, strict=True):
            if not self._same_value(theirs, ours):
                return f"{name} is {_number(ours)!r} by the graph, and {_number(theirs)!r} by an eager step"
        return None

    def _put(self, values):
        for name, array in self._arrays.items():
            array[...] = values[name]

    def _same_value(self, expected, found):
        if not isinstance(expected, (chainer.Variable, *chainer.get_array_types())):
            return expected == found
        expected, found = _on_host(chainer.as_array(expected)), _on_host(chainer.as_array(found))
        if self.bitwise or expected.dtype.kind not in "fV":
            return _same_bits(expected, found)
        found, expected = (x.astype(np.float32, copy=False) for x in (found, expected))
        finite = np.isfinite(found) & np.isfinite(expected)  # not those of a step that overflows
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        with np.errstate(invalid="ignore"):
            near = abs(found - expected) <= _VALUE * np.maximum(abs(expected), 1)
        return bool((same | (finite & near)).all())

    def _difference_of(self, name, found, expected, noise):
        """Returns how an array differs, as the end of a sentence that begins with its name, or ``None``."""
        by_bits = self.bitwise or found.dtype.kind not in "fV"
        if not by_bits and not _is_bounded(found):  # rounded from a master that is compared
            return None
        found, expected = _on_host(found), _on_host(expected)
        if _same_bits(found, expected):
            return None
        text = "is not the same after the graph as after an eager step"
        if found.dtype.kind not in "fV":
            return text
        if found.dtype.itemsize < 4:
            found, expected = found.astype(np.float32), expected.astype(np.float32)
        if not (np.isfinite(found).all() and np.isfinite(expected).all()):
            return f"{text}: {_not_finite(found)} and {_not_finite(expected)} of {found.size} elements are not finite"
        distance = _norm(found.astype(np.float64) - expected if by_bits else _without_equal(found, expected))
        change = _norm(expected.astype(np.float64) - _on_host(self._before[name]).astype(expected.dtype))
        if not by_bits and distance <= max(_CHANGE * change, _APART * noise):
            return None
        return f"{text}: distance {distance:.3g}, change {change:.3g}, noise {noise:.3g}"


def noise_of(eager, launches):
    """Returns which distances of a launch from an eager step say nothing.

    Args:
        eager: :class:`Runs` of eager steps.
        launches: likewise of launches.

    Returns:
        dict from names to distances: by how much eager steps differ, or launches, whichever is more, unless one of the
        two is another order of magnitude. ``None`` if that is not known.
    """
    if not eager.apart or not launches.apart:
        return None
    pairs = {name: sorted((distance, launches.apart[name])) for name, distance in eager.apart.items()}
    return {name: min(larger, _UNLIKE * smaller) for name, (smaller, larger) in pairs.items()}


def _copies(arrays):
    return {name: array.copy() for name, array in arrays.items()}


def _on_host(array):
    """Returns an array of NumPy, waiting for the device; CuPy would compile its reductions first, for seconds."""
    return np.asarray(cuda.to_cpu(array))


def _is_bounded(array):
    """Whether an array is compared by a distance: what is narrower than FP32 is rounded from what is compared."""
    return array.dtype.kind in "fV" and array.dtype.itemsize >= 4


def _distance(a, b):
    """The norm of the difference of two arrays of FP32 or wider, 0 if it is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        norm = _norm(a.astype(np.float64) - b)
    return norm if np.isfinite(norm) else 0.0


def _without_equal(a, b):
    """Returns the difference of two finite arrays, with zeros where they are equal but for some last places."""
    difference = a.astype(np.float64) - b
    difference[abs(difference) <= _UNITS * np.spacing(np.maximum(abs(a), abs(b)))] = 0
    return difference


def _not_finite(array):
    return int(array.size - np.isfinite(array).sum())


def _same_bits(a, b):
    a, b = (np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}") for x in (a, b))
    return not (a != b).any()


def _norm(array):
    return float(np.linalg.norm(array))


def _number(value):
    value = chainer.as_array(value) if isinstance(value, (chainer.Variable, *chainer.get_array_types())) else value
    return to_host(value) if getattr(value, "size", 1) == 1 else value
