"""When the buckets of gradients were under way in a step, and when its backward pass was over: traced in a rank.

Outside of :meth:`Trace.steps` mixprec runs as it is; there its class of sums is another one.
"""

import contextlib
import math
import time

from mixprec.distributed import exchange, mpi_transport

_NUMBERS = 8  # bytes of an element of what is summed besides gradients: checks, scales


def under_way(intervals, end=math.inf):
    """Returns the seconds before ``end`` in which at least one of some intervals ran.

    Args:
        intervals: list of ``(start, stop)`` in seconds, in any order; they may overlap.
        end: what comes later does not count.
    """
    seconds, reached = 0.0, -math.inf
    for start, stop in sorted(intervals):
        start, stop = max(start, reached), min(stop, end)
        seconds += max(0.0, stop - start)
        reached = max(reached, stop)
    return seconds


class Trace:
    """Notes the sums of gradients of steps.

    Attributes:
        hidden: seconds in which buckets were under way during backward passes.
        total: seconds in which buckets were under way.
    """

    def __init__(self):
        self.hidden = self.total = 0.0
        self._sums = []

    @contextlib.contextmanager
    def steps(self):
        """Returns a context for steps that are traced."""
        notes = self._sums
        own, finish = mpi_transport._Sum, exchange.GradientExchange.finish

        class TracedSum(own):
            def __init__(self, turns, comm, array):
                self.start, self.stop = time.perf_counter(), None
                super().__init__(turns, comm, array)
                if array.dtype.itemsize < _NUMBERS:
                    notes.append(self)

            @property
            def done(self):  # as late as this rank learns of it
                is_done = super().done
                if is_done and self.stop is None:
                    self.stop = time.perf_counter()
                return is_done

        def traced_finish(gradient_exchange, numbers):
            pass_end = time.perf_counter()
            found = finish(gradient_exchange, numbers)
            self._step(pass_end)
            return found

        mpi_transport._Sum, exchange.GradientExchange.finish = TracedSum, traced_finish
        try:
            yield
        finally:
            mpi_transport._Sum, exchange.GradientExchange.finish = own, finish

    def _step(self, pass_end):
        intervals = [(each.start, each.stop) for each in self._sums]
        self._sums.clear()
        self.hidden += under_way(intervals, pass_end)
        self.total += under_way(intervals)
