"""Comparing a launch of a new graph with an eager step from the same state.

:class:`~mixprec.graph_capture.specialization.Specialization` uses it in the two calls that compare.
"""

from typing import NamedTuple

import chainer
import numpy as np
from chainer.backends import cuda

from mixprec.backends.memory import flat, is_dense
from mixprec.backends.transfers import to_host
from mixprec.graph_capture.reports import copied

# In bounds: what a step adds to an array, over the distance of the two results. Some engines of cuDNN add in another
# order each time, and rules that divide by the size of a gradient make much of little. If the sums of a batch
# normalization are among them, gradients of a deep network that is not trained yet differ from run to run by as much as
# they are: so two results may also be some times as far apart as those of two launches of one graph are.
_CHANGE = 0.25
_APART = 4
_VALUE = 2.0**-8  # of losses and reported values, relative: a forward pass is nearly the same bits


class Outcome(NamedTuple):
    """The results of a step, and the arrays that it moved.

    Attributes:
        values: ``[(name, array or number)]``: its results.
        arrays: dict from names to the arrays that it moves, those without gaps flat, or copies of them.
    """

    values: list
    arrays: dict


class Verification:
    """Compares several runs of a step that begin from the same state.

    Args:
        arrays: dict from names to the arrays that the step moves, all of them.
        bitwise: whether outcomes must be the same bit for bit; otherwise within bounds.
        uncertain: names of arrays that follow from gradients.

    Attributes:
        bitwise: see above.
    """

    def __init__(self, arrays, bitwise, uncertain=()):
        # CuPy goes through an array in the order of its axes: through a filter, strided, unless it is seen as flat.
        self._arrays = {name: flat(array) if is_dense(array) else array for name, array in arrays.items()}
        self.bitwise = bitwise
        self._uncertain = uncertain
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

    def same_course(self, found, expected, names):
        """Returns whether arrays of these names are the same in both outcomes; the host waits for the device."""
        return all(_same_bits(*map(_on_host, (found.arrays[name], expected.arrays[name]))) for name in names)

    def spread(self, first):
        """Returns how far two launches of a graph from the same state are apart, where that may be.

        Args:
            first: the :class:`Outcome` of one launch, with copies; the next one has left what is there now.

        Returns:
            dict from names of arrays that follow from gradients to the norm of their difference.
        """
        return {
            name: _apart(array, first.arrays[name]) for name, array in self._arrays.items() if name in self._uncertain
        }

    def difference(self, found, expected, spread=None):
        """Returns the first difference between two outcomes, as text; the host waits for the device.

        Args:
            found: :class:`Outcome` of the graph.
            expected: that of an eager step.
            spread: of :meth:`spread`, or ``None``.

        Returns:
            str, or ``None``.
        """
        reason = self.difference_of_values(found, expected)
        if reason is not None:
            return reason
        for name, array in found.arrays.items():
            noise = (spread or {}).get(name, 0.0)
            if not self._same_array(array, expected.arrays[name], self._before[name], noise):
                return f"{name} is another one after the graph than after an eager step"
        return None

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

    def _same_array(self, found, expected, before, noise):
        by_bits = self.bitwise or found.dtype.kind not in "fV"
        if not by_bits and found.dtype.itemsize < 4:  # rounded from a master that is compared
            return True
        found, expected = _on_host(found), _on_host(expected)
        if _same_bits(found, expected):
            return True
        if by_bits or not (np.isfinite(found).all() and np.isfinite(expected).all()):
            return False
        return _norm(found - expected) <= max(_CHANGE * _norm(expected - _on_host(before)), _APART * noise)


def _copies(arrays):
    return {name: array.copy() for name, array in arrays.items()}


def _on_host(array):
    """Returns an array of NumPy, waiting for the device; CuPy would compile its reductions first, for seconds."""
    return np.asarray(cuda.to_cpu(array))


def _apart(a, b):
    """The norm of the difference of two arrays, 0 if it is not compared."""
    if a.dtype.kind not in "fV" or a.dtype.itemsize < 4:
        return 0.0
    with np.errstate(invalid="ignore"):
        norm = _norm(_on_host(a) - _on_host(b))
    return norm if np.isfinite(norm) else 0.0


def _same_bits(a, b):
    a, b = (np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}") for x in (a, b))
    return not (a != b).any()


def _norm(array):
    return float((array.astype(np.float64) ** 2).sum()) ** 0.5


def _number(value):
    value = chainer.as_array(value) if isinstance(value, (chainer.Variable, *chainer.get_array_types())) else value
    return to_host(value) if getattr(value, "size", 1) == 1 else value
