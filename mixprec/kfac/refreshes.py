"""In which steps K-FAC takes new second moments, and computes new inverses."""

import collections

import numpy as np

from mixprec.backends.transfers import to_host_async

#: Kinds of steps; each does what those before it do, too.
PLAIN, MOMENTS, INVERSES = range(3)

_LATER = 8  # steps after which the host looks whether a step was skipped, which it then knows without waiting


class Refreshes:
    """Says for each step of which kind it is. All of it depends on numbers of steps alone: it is the same on all ranks.

    A step that is skipped brings nothing new. Whether it is, a device knows at once and the host only later: it looks
    :data:`_LATER` steps after each step that was not plain, and has such a step again if that one was skipped. Until it
    knows of the first success every step computes new inverses.

    Args:
        moments_every: every how many steps there are new second moments.
        inverses_every: every how many steps there are new inverses, a multiple of ``moments_every``.
    """

    def __init__(self, moments_every, inverses_every):
        self._moments_every, self._inverses_every = moments_every, inverses_every
        self._waiting = collections.deque()  # (number, kind, whether it was skipped, on its way to the host)
        self._steps = 0
        self._is_known = False
        self._due = PLAIN

    @property
    def kind(self):
        """Of the step that is next, or under way."""
        if not self._is_known or not self._steps % self._inverses_every:
            return INVERSES
        return max(self._due, PLAIN if self._steps % self._moments_every else MOMENTS)

    def restart(self):
        """Has new inverses in every step again, until the host knows of a success from now on."""
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
        """Saves or loads where the schedule is; waits for what is on its way."""
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
