"""The search for choices: which buffers stay, which are recomputed, and which move, for the shortest round.

Simple rules are tried first, such as moving the buffers that wait longest. Decisions of the fastest choices are then
changed, many at a time and then one by one, as long as the prediction improves. The search is deterministic.
"""

import numpy as np

from mixprec.activation_memory.timetable import KEEP, RECOMPUTE, SWAP

_PREDICTIONS = 600  # a few milliseconds each, for large networks
_FOR_RULES = 250  # predictions for simple rules
_BETTER = 1e-9  # smallest relative improvement: less is a rounding error
_SPARE = (1.0, 0.5, 0.2)
_AT_ONCE = -1.0
_SHARES = (0.05, 0.15, 0.3, 0.6, 1.0)
_CHANGES = ((SWAP, KEEP), (SWAP, RECOMPUTE), (RECOMPUTE, SWAP), (RECOMPUTE, KEEP), (KEEP, SWAP), (KEEP, RECOMPUTE))
_FEWEST = 2  # events between the last use in the forward pass and the first need


def movable(recording, smallest):
    """Returns a boolean array of the buffers that may leave the device.

    Args:
        recording: :class:`~mixprec.activation_memory.recording.Recording`.
        smallest: bytes; smaller buffers stay.
    """
    return np.array(
        [buffer.size >= smallest and buffer.needs[0] - buffer.held > _FEWEST for buffer in recording.buffers], bool
    )


class Search:
    """Searches for the best choices; at least one set of choices must fit.

    Args:
        recording: :class:`~mixprec.activation_memory.recording.Recording`.
        forecast: :class:`~mixprec.activation_memory.timetable.Forecast` of it, with the budget.
        bus: :class:`~mixprec.activation_memory.recording.Bus`.
        can_move: array from :func:`movable`.
        recompute: whether buffers may be recomputed.

    Attributes:
        predictions: number of schedules that were made.
    """

    def __init__(self, recording, forecast, bus, can_move, recompute):
        self._buffers = recording.buffers
        self._forecast = forecast
        self._can_move = can_move
        self._can_repeat = can_move & np.array(
            [recompute and buffer.recomputation is not None for buffer in self._buffers], bool
        )
        self._sizes = np.array([buffer.size for buffer in self._buffers])
        self._gaps = np.array([buffer.needs[0] - buffer.held for buffer in self._buffers])
        copying = np.array([2 * bus.latency + size / bus.out + size / bus.back for size in self._sizes])
        again = [buffer.recomputation for buffer in self._buffers]
        seconds = np.array([np.inf if each is None else each.seconds for each in again])
        self._dear = seconds / np.maximum(copying, 1e-30)
        self._saved = seconds - copying
        self._by_gap = self._order(-self._gaps)
        self._by_dear = self._order(self._dear)
        self._seen = set()
        self._best = self._best_choices = self._best_spare = None
        self.predictions = 0

    def best(self):
        """Returns the best :class:`~mixprec.activation_memory.timetable.Schedule` found."""
        self._try_rules()
        while self.predictions < _PREDICTIONS and self._improve():
            pass
        return self._with_other_releases()

    def _order(self, key):
        """Returns the numbers of the movable buffers, sorted by a key."""
        numbers = np.argsort(key, kind="stable")
        return numbers[self._can_move[numbers]]

    def _settled(self, choices, rank=None):
        """Returns choices without contradictions: the sources of recomputed buffers are kept or swapped.

        Of two buffers that contradict each other, the one with the lower rank is recomputed.
        """
        rank = self._dear if rank is None else rank
        choices = np.where(self._can_move, choices, KEEP).astype(np.int8)
        choices[(choices == RECOMPUTE) & ~self._can_repeat] = SWAP
        again = np.flatnonzero(choices == RECOMPUTE)
        repeated, sources = set(), {}
        for b in again[np.argsort(rank[again], kind="stable")].tolist():
            mine = self._buffers[b].recomputation.sources
            if b in sources or not repeated.isdisjoint(mine):
                choices[b] = SWAP
                continue
            repeated.add(b)
            need = self._buffers[b].needs[0]
            for source in mine:
                sources[source] = min(need, sources.get(source, need))
        for source, need in sources.items():
            if need - self._buffers[source].held <= _FEWEST:
                choices[source] = KEEP
        return choices

    def _try(self, choices, spare=0.0):
        """Makes the schedule for given choices, once; returns whether it is the best so far."""
        choices = self._settled(choices)
        key = spare, choices.tobytes()
        if key in self._seen or not self._forecast.fits(choices):
            return False
        self._seen.add(key)
        self.predictions += 1
        return self._take(self._forecast.schedule(choices, spare), choices, spare)

    def _try_both(self, choices):
        """Tries choices with late and with immediate release of memory."""
        self._try(choices)
        self._try(choices, _AT_ONCE)

    def _take(self, found, choices, spare):
        best = self._best
        if best is not None:
            least = _BETTER * best.seconds
            if found.seconds > best.seconds - least and (
                found.seconds > best.seconds + least or found.bytes_out >= best.bytes_out
            ):
                return False
        self._best, self._best_choices, self._best_spare = found, choices, spare
        return True

    def _try_rules(self):
        """Tries orders in which buffers leave, with several rules for swapping or recomputing them."""
        convolution = np.array([buffer.is_convolution_input for buffer in self._buffers], bool)
        number = np.arange(len(self._buffers))
        self._try_both(np.full(len(number), SWAP))
        self._try_both(np.where(convolution, SWAP, KEEP))  # vDNN
        orders = [
            self._by_gap,
            self._order(-number),  # the first buffers stay
            self._order(-self._sizes * self._gaps),
            self._order(-self._sizes),
            self._order(-number - len(number) * convolution),
        ]
        swap = np.full(len(number), SWAP)
        ways = [swap, *self._ways()]
        for way in ways:
            for order in orders:
                if self.predictions < _FOR_RULES:
                    self._try_order(order, way)

    def _ways(self):
        """Yields rules for leaving buffers: recompute the cheap ones, or the ones that save most time."""
        for rank in (self._dear, self._saved):
            order = self._order(rank)
            order = order[self._can_repeat[order]]
            for share in (1.0, 0.5, 0.25) if len(order) else ():
                way = np.full(len(rank), SWAP)
                way[order[: round(share * len(order))]] = RECOMPUTE
                yield self._settled(way, rank)

    def _try_order(self, order, way):
        """Tries to move the first buffers of an order, as few as fit and more; and to keep what fits from its end."""

        def first(count):
            choices = np.full(len(way), KEEP)
            choices[order[:count]] = way[order[:count]]
            return choices

        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._forecast.fits(self._settled(first(middle))) else (middle + 1, high)
        self._try_both(first(high))
        for share in _SHARES:
            self._try(first(high + round(share * (len(order) - high))))
        self._try(self._filled(np.where(self._can_move, way, KEEP), order[::-1]))

    def _filled(self, choices, order):
        """Returns choices with as much kept as fits, in an order."""
        choices = self._settled(choices)
        for b in order.tolist():
            before = choices[b]
            if before != KEEP:
                choices[b] = KEEP
                if not self._forecast.fits(choices):
                    choices[b] = before
        return choices

    def _improve(self):
        """Changes decisions of the best choices, for many buffers and then for fewer; returns whether that helped."""
        improved = False
        size = max(1, len(self._by_gap) // 4)
        while True:
            for before, after in _CHANGES:
                for order in (self._by_gap, self._by_dear) if after == RECOMPUTE else (self._by_gap,):
                    improved |= self._change(before, after, order, size)
            if size == 1 or self.predictions >= _PREDICTIONS:
                return improved
            size = max(1, size // 4)

    def _change(self, before, after, order, size):
        allowed = self._can_repeat if after == RECOMPUTE else self._can_move
        members = order[(self._best_choices[order] == before) & allowed[order]]
        improved = False
        for start in range(0, len(members), size):
            if self.predictions >= _PREDICTIONS:
                break
            block = members[start : start + size]
            choices = self._best_choices.copy()
            choices[block] = np.where(choices[block] == before, after, choices[block])
            improved |= self._try(choices, self._best_spare)
            if before == KEEP:
                # Other buffers may use the memory; first the ones that would return soonest.
                others = self._by_gap[::-1]
                filled = self._filled(choices, others[~np.isin(others, block)])
                improved |= self._try(filled, self._best_spare)
        return improved

    def _with_other_releases(self):
        """Returns the best schedule, with memory released earlier if that is faster, or later if that costs nothing.

        Copies may take longer than predicted: the later they must be done, the less computing waits for them.
        """
        for spare in (_AT_ONCE, _AT_ONCE / 2, 0.0):
            self._try(self._best_choices, spare)
        for spare in _SPARE:
            found = self._forecast.schedule(self._best_choices, spare)
            if found.seconds <= self._best.seconds * (1 + _BETTER):
                return found
        return self._best
