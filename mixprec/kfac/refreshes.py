"""Decides in which steps K-FAC computes new second moments, and new inverses."""

import collections

import numpy as np

from mixprec.backends.transfers import to_host_async

#: Kinds of steps; each also does the work of the kinds before it.
PLAIN, MOMENTS, INVERSES = range(3)

_LATER = 8  # steps after which the host can read whether a step was skipped without waiting


class Refreshes:
    """Decides the kind of each step. This depends on numbers of steps alone, and is the same on all ranks.

    A skipped step has no new results. The device knows at once whether a step is skipped, the host only later: it reads
    the flag :data:`_LATER` steps after each step that was not plain, and repeats this kind of step if that one was
    skipped. Until the host knows of the first success, every step computes new inverses.

    Args:
        moments_every: number of steps from one computation of second moments to the next.
        inverses_every: number of steps from one computation of inverses to the next, a multiple of ``moments_every``.
    """

    def __init__(self, moments_every, inverses_every):
        self._moments_every, self._inverses_every = moments_every, inverses_every
        self._waiting = collections.deque()  # (number, kind, transfer of whether it was skipped)
        self._steps = 0
        self._is_known = False
        self._due = PLAIN

    @property
    def kind(self):
        """Kind of the current or next step."""
        if not self._is_known or not self._steps % self._inverses_every:
            return INVERSES
        return max(self._due, PLAIN if self._steps % self._moments_every else MOMENTS)

    def restart(self):
        """Computes inverses in every step again, until the host knows of a new success."""
        self._is_known = False
        self._waiting.clear()

    def over(self, skip):
        """Ends a step.

        Args:
            skip: whether it was skipped: a bool, or an array of shape () on any device, which is copied.
        """
        kind = self.kind
        if kind:
            self._due = PLAIN
            self._waiting.append((self._steps, kind, to_host_async(skip)))
        self._steps += 1
        while self._waiting and self._waiting[0][0] + _LATER <= self._steps:
            _, kind, skipped = self._waiting.popleft()
            if skipped.value:
                self._due = max(self._due, kind)
            else:
                self._is_known = True

    def serialize(self, serializer, loads):
        """Saves or loads the state of the schedule; waits for transfers."""
        numbers = np.array([self._steps, self._is_known, self._due], np.int64)
        waiting = np.full((_LATER, 3), -1, np.int64)
        for row, (number, kind, skipped) in zip(waiting, self._waiting, strict=False):
            row[:] = number, kind, bool(skipped.value)
        numbers, waiting = (
            serializer(name, None if loads else array) for name, array in (("steps", numbers), ("waiting", waiting))
        )
        if loads:
            self._steps, self._is_known, self._due = int(numbers[0]), bool(numbers[1]), int(numbers[2])
            rows = [(int(number), int(kind), to_host_async(bool(skip))) for number, kind, skip in waiting]
            self._waiting = collections.deque(row for row in rows if row[0] >= 0)
