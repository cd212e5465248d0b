"""A transport without MPI: another rank that has, in every sum, the same numbers as this one.

The mean over both is then what this one has, bit for bit, so that a run equals one without a communicator.
"""

import types

import numpy as np

import mixprec
from mixprec.distributed.transport import Transport, Work

POISON = np.nan


class Twins(Transport):
    """Rank 0 of two.

    Arrays that are under way hold :data:`POISON`, so that a use of them shows.

    Attributes:
        events: what has happened, ``("start", size)`` and whatever a test adds.
        is_slow: whether a sum is done when it is joined only.
        other: function from an array that has been started to what the other rank has; ``None`` for the same.
    """

    rank, size = 0, 2

    def __init__(self):
        self.events = []
        self.is_slow = False
        self.other = None

    def start(self, array):
        self.events.append(("start", array.size))
        others = array.copy() if self.other is None else self.other(array.copy())
        return _Sum(self, array, (array.astype(np.float64) + others.astype(np.float64)).astype(array.dtype))

    def broadcast(self, array):
        self.events.append(("broadcast", array.size))

    def gather(self, value):
        return [value, value]


class _Sum(Work):
    def __init__(self, twins, array, result):
        self._array, self._result = array, result
        array[...] = POISON
        if not twins.is_slow:
            self.join()

    @property
    def done(self):
        return self._result is None

    def join(self):
        if self._result is not None:
            self._array[...], self._result = self._result, None


COMMUNICATOR = types.SimpleNamespace(mpi_comm=None, rank=0)


def wrapped(optimizer, loss_scale="dynamic", **settings):
    """Returns a wrapper with the communicator."""
    return mixprec.MixedPrecisionOptimizer(optimizer, loss_scale, communicator=COMMUNICATOR, **settings)
