"""Compares launches of a new graph with eager steps from the same state.

:class:`~mixprec.graph_capture.specialization.Specialization` uses it in the calls that compare. ``docs/capture.md``
explains the bounds, and which faults they detect.
"""

from typing import NamedTuple

import chainer
import numpy as np
from chainer.backends import cuda

from mixprec.backends.memory import flat, is_dense
from mixprec.graph_capture.reports import copied

_CHANGE = 2.0**-8  # allowed distance of two results, relative to the change in a step, or to a value
# Some engines of cuDNN add in a different order each time. Gradients of a deep network that is untrained, or has
# overfitted its batch, then differ from run to run by as much as their own size. So the distance of a launch and an
# eager step may also be this multiple of the distance among launches, or among eager steps, whichever is larger.
_APART = 4
# But if the runs of one kind are this many times further apart than the runs of the other, they are different steps: a
# graph that leaves out a gradient, for example, adds the same momentum in each launch.
_UNLIKE = 64
# Losses and reported values vary less: much less than the increments of an array that each run changes and mixprec
# cannot restore. Relative to the norm of a value, or to 1 if the norm is smaller.
_VALUE = 2.0**-4
_UNITS = 2  # units in the last place: numbers this close count as equal


class Outcome(NamedTuple):
    """The results of a run of a step.

    Attributes:
        arrays: dict from names to the arrays that it changes, dense ones flat, and to results and reported values that
            are arrays; or to copies.
        others: dict from names to results and reported values that are not arrays.
    """

    arrays: dict
    others: dict


class Runs(NamedTuple):
    """Runs of the same kind: eager steps, or launches of a graph.

    Attributes:
        outcome: the :class:`Outcome` of one run, in copies.
        apart: the result of :meth:`Verification.apart` for all runs; empty for fewer than two.
    """

    outcome: Outcome
    apart: dict


class Verification:
    """Compares several runs of a step from the same state.

    Args:
        arrays: dict from names to all arrays that the step changes.
        bitwise: whether outcomes must be the same bit for bit; otherwise within bounds.
        branches: names of arrays that tell which of several branches the step has taken.
    """

    def __init__(self, arrays, bitwise, branches=()):
        # CuPy iterates in the order of axes, which is strided for a filter; a flat view is faster.
        self._arrays = {name: flat(array) if is_dense(array) else array for name, array in arrays.items()}
        self._bitwise, self._branches = bitwise, branches
        self._before = {name: array.copy() for name, array in self._arrays.items()}

    def outcome(self, values):
        """Returns the :class:`Outcome` of the last run, in copies.

        Args:
            values: ``[(name, value)]`` of its results and reported values, also in tuples, lists and dicts.
        """
        arrays, others = _parted(values)
        return Outcome({name: array.copy() for name, array in (arrays | self._arrays).items()}, copied(others))

    def turn_back(self):
        """Restores the state before the step."""
        self._put(self._before)

    def take(self, outcome):
        """Sets the state to the outcome of a step."""
        self._put(outcome.arrays)

    def apart(self, first, values, so_far):
        """Returns the distances of runs of the same kind; the host waits for the device.

        Args:
            first: the :class:`Outcome` of the first run.
            values: results of the last run, as for :meth:`outcome`.
            so_far: the return value for the runs in between; ``{}`` for none.

        Returns:
            dict from names of arrays to the norm of the difference between the first run and the run furthest from it,
            0 if that is not finite. A run that took another branch than the first, because only one of them overflowed,
            does not count.
        """
        if not all(_same_bits(_on_host(first.arrays[name]), _on_host(self._arrays[name])) for name in self._branches):
            return so_far
        now = self._arrays | _parted(values)[0]
        return {
            name: max(_distance(_on_host(array), _on_host(now[name])), so_far.get(name, 0.0))
            for name, array in first.arrays.items()
            if self._is_bounded(name, array) and name in now and now[name].shape == array.shape
        }

    def differences(self, launches, eager):
        """Compares launches of a graph with eager steps; the host waits for the device.

        Args:
            launches, eager: :class:`Runs`.

        Returns:
            dict from names of arrays and values that differ to a sentence about the difference.
        """
        found, expected = launches.outcome, eager.outcome
        if found.arrays.keys() != expected.arrays.keys() or found.others.keys() != expected.others.keys():
            return {"values": "the graph and an eager step report different values"}
        reasons = {
            name: f"{name} is {value!r} in the graph, and {expected.others[name]!r} in an eager step"
            for name, value in found.others.items()
            if value != expected.others[name]
        }
        for name, array in found.arrays.items():
            noise = _noise(eager.apart.get(name, 0.0), launches.apart.get(name, 0.0))
            reason = self._difference(name, array, expected.arrays[name], noise)
            if reason is not None:
                reasons[name] = reason
        return reasons

    def _put(self, values):
        for name, array in self._arrays.items():
            array[...] = values[name]

    def _is_bounded(self, name, array):
        """Whether an array is compared by a distance: not counters, nor parameters rounded from a master."""
        return name not in self._before or (array.dtype.kind in "fV" and array.dtype.itemsize >= 4)

    def _difference(self, name, found, expected, noise):
        """Returns a sentence about the difference of an array, or ``None``."""
        is_bounded = not self._bitwise and self._is_bounded(name, found)
        if not self._bitwise and not is_bounded and found.dtype.kind in "fV":
            return None  # rounded from a master that is compared
        if (found.dtype, found.shape) != (expected.dtype, expected.shape):
            return f"{name} is {found.dtype} {found.shape} in the graph, and {expected.dtype} {expected.shape} eagerly"
        found, expected = _on_host(found), _on_host(expected)
        if _same_bits(found, expected):
            return None
        before = _on_host(self._before[name]).astype(np.float64) if name in self._before else 0.0
        difference = _difference(found, expected)
        with np.errstate(invalid="ignore"):
            change = _norm(np.nan_to_num(expected.astype(np.float64) - before, nan=0, posinf=0, neginf=0))
        distance, text = _norm(difference), f"{name} differs between the graph and an eager step"
        if found.size == 1 and name not in self._before:
            text = f"{name} is {found.item():g} in the graph, and {expected.item():g} in an eager step"
        if not np.isfinite(distance):
            return f"{text}: {(~np.isfinite(difference)).sum()} of {found.size} elements are finite in one of them only"
        limit = np.inf if name in self._before else _VALUE * max(change, 1)
        bound = max(_CHANGE * change, min(_APART * noise, limit))
        if is_bounded and distance > bound:
            distance = _norm(np.where(abs(difference) <= _UNITS * _unit(found, expected), 0, difference))
        if is_bounded and distance <= bound:
            return None
        return f"{text}: distance {distance:.3g}, change {change:.3g}, noise {noise:.3g}"


def _parted(values):
    """Returns dicts from names to arrays, and to other values; a repeated name gets a number."""
    arrays, others = {}, {}
    for name, value in values:
        for each, leaf in _leaves(name, value):
            number = sum(known.partition(" #")[0] == each for known in (*arrays, *others))
            each = f"{each} #{number + 1}" if number else each
            if isinstance(leaf, (chainer.Variable, *chainer.get_array_types())):
                arrays[each] = chainer.as_array(leaf)
            else:
                others[each] = leaf
    return arrays, others


def _leaves(name, value):
    if isinstance(value, (tuple, list)):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield name, value
        return
    for key, each in value.items():
        yield from _leaves(f"{name}[{key!r}]", each)


def _noise(eager, launches):
    """The allowed distance of a launch from an eager step, given the distances among eager steps and among launches."""
    return min(max(eager, launches), _UNLIKE * min(eager, launches))


def _on_host(array):
    """Returns a NumPy array, waiting for the device; CuPy would need seconds to compile its reductions."""
    return np.asarray(cuda.to_cpu(array))


def _difference(a, b):
    """The difference of two arrays, 0 where both are the same infinity or NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, a - b)


def _distance(a, b):
    norm = _norm(_difference(a, b))
    return norm if np.isfinite(norm) else 0.0


def _norm(array):
    return float(np.linalg.norm(array))


def _unit(a, b):
    """The unit in the last place of the larger one of two arrays, element by element; 0 for integers."""
    if a.dtype.kind not in "fV":
        return 0
    largest = np.maximum(abs(a.astype(np.float64)), abs(b.astype(np.float64)))
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[a.dtype.name]
    return np.ldexp(1.0, np.frexp(largest)[1] - digits)


def _same_bits(a, b):
    a, b = (np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}") for x in (a, b))
    return not (a != b).any()
