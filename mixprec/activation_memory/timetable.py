"""Schedules: when buffers leave a device and come back, and a prediction of time and memory.

A device computes in one queue, and copies out and back in two others. Before each event, in this order: copies out of
the buffers that the last event made are enqueued; memory is released, after computing has waited for its copy; memory
is allocated for buffers that come back, and their copies are enqueued; computing waits for buffers that the event needs
for the first time, and recomputes others.
"""

import collections
import dataclasses

import numpy as np

KEEP, SWAP, RECOMPUTE = range(3)
NAMES = ("keep", "swap", "recompute")
_NO_LIMIT = 1 << 52  # sums of bytes are exact in float64 up to twice this number
_NOTHING = 1e-12  # relative to a round: rounding errors of times


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The choice for each buffer of a round, with the predicted time and memory.

    Attributes:
        choices: tuple of ``"keep"``, ``"swap"`` or ``"recompute"``, one for each buffer.
        release: tuple of the numbers of the events before which memory is released, or ``None``.
        back: tuple of the numbers of the events before which memory is allocated for a copy back, or ``None``.
        seconds: time of the round.
        peak: largest number of bytes in use.
        bytes_out: bytes that are copied out, and back.
        stalled: seconds in which computing waits for copies.
        recomputed: seconds in which buffers are recomputed.
    """

    choices: tuple
    release: tuple
    back: tuple
    seconds: float
    peak: int
    bytes_out: int
    stalled: float
    recomputed: float


def schedule(choices, recording, budget, bus):
    """Returns the :class:`Schedule` for given choices, or ``None`` if they do not fit.

    Args:
        choices: sequence of ``"keep"``, ``"swap"`` or ``"recompute"``, one for each buffer.
        recording: :class:`~mixprec.activation_memory.recording.Recording`.
        budget: bytes, or ``None`` for no limit.
        bus: :class:`~mixprec.activation_memory.recording.Bus`.
    """
    return Forecast(recording, budget, bus).schedule(np.array([NAMES.index(choice) for choice in choices], np.int8))


class Forecast:
    """Makes schedules for different choices in one round.

    Args:
        recording, budget, bus: as for :func:`schedule`.

    Attributes:
        budget: bytes.
        compute: total seconds of all events.
    """

    def __init__(self, recording, budget, bus):
        events, buffers = recording.events, recording.buffers
        self.budget = _NO_LIMIT if budget is None else budget
        self._count = len(events)
        self._seconds = np.array([event.seconds for event in events], float)
        self._clock = np.concatenate([[0.0], np.cumsum(self._seconds)])
        self._others = np.array([event.others for event in events], float)
        self._sizes = np.array([buffer.size for buffer in buffers], float)
        spans = [(buffer.made, buffer.held, buffer.needs[0], buffer.needs[-1]) for buffer in buffers]
        self._made, self._held, self._first, self._last = np.array(spans, int).reshape(-1, 4).T
        self._out = bus.latency + self._sizes / bus.out
        self._in = bus.latency + self._sizes / bus.back
        self._order = np.lexsort([np.arange(len(buffers)), self._made])  # of copies out
        again = [buffer.recomputation for buffer in buffers]
        self._again = np.array([0.0 if each is None else each.seconds for each in again])
        pairs = [(b, source) for b, each in enumerate(again) if each is not None for source in each.sources]
        self._users, self._sources = np.array(pairs, int).reshape(-1, 2).T
        self.compute = float(self._clock[-1])

    def schedule(self, choices, spare=0.0):
        """Returns the :class:`Schedule` for given choices, or ``None`` if they do not fit.

        Args:
            choices: array of :data:`KEEP`, :data:`SWAP` and :data:`RECOMPUTE`.
            spare: delay of releases after the copy is done, as a fraction of the time from the end of the event that
                made the buffer. With -1 nothing is delayed, and computing waits. Memory that is needed is released
                earlier.
        """
        spans = self._spans(choices)
        low = None if spans is None else self._low(choices, *spans)
        if low is None or low.max(initial=0) > self.budget:
            return None
        first, _ = spans
        swapped = self._order[choices[self._order] == SWAP]
        again = np.flatnonzero(choices == RECOMPUTE)
        seconds = self._seconds + np.bincount(first[again], self._again[again], self._count)
        clock = np.concatenate([[0.0], np.cumsum(seconds)])
        release = self._releases(swapped, first, clock, spare)
        memory = low + self._late(swapped, release)
        too_early = clock[release] < self._copied(swapped, clock) - _NOTHING * clock[-1]
        if memory.max(initial=0) > self.budget or (spare >= 0 and too_early.any()):
            release = self._forced_releases(swapped, first, low, clock, spare)
            memory = low + self._late(swapped, release)
        order = np.lexsort([swapped, first[swapped]])  # of copies back
        back, memory = self._backs(swapped, order, release, first, memory)
        late, recomputed = self._run(swapped, order, again, release, back, first)
        return self._made_schedule(choices, swapped, again, release, back, memory, late, recomputed)

    def fits(self, choices):
        """Whether there is a schedule for given choices."""
        memory = self.low(choices)
        return memory is not None and memory.max(initial=0) <= self.budget

    def low(self, choices):
        """Returns the least memory in use at each event for given choices, or ``None`` if the choices contradict."""
        spans = self._spans(choices)
        return None if spans is None else self._low(choices, *spans)

    def _spans(self, choices):
        """Returns the first and last need of each buffer; recomputing others from it counts as a need."""
        first, last = self._first, self._last
        used = choices[self._users] == RECOMPUTE
        if used.any():
            sources, needs = self._sources[used], first[self._users[used]]
            if (choices[sources] == RECOMPUTE).any():
                return None
            first, last = first.copy(), last.copy()
            np.minimum.at(first, sources, needs)
            np.maximum.at(last, sources, needs)
        if ((choices != KEEP) & (first <= self._held)).any():
            return None
        return first, last

    def _low(self, choices, first, last):
        away = choices != KEEP
        sizes = self._sizes[away]
        change = np.bincount(self._made, self._sizes, self._count + 1)
        change -= np.bincount(self._held[away] + 1, sizes, self._count + 1)
        change += np.bincount(first[away], sizes, self._count + 1)
        change -= np.bincount(last[away] + 1, sizes, self._count + 1)
        return self._others + np.cumsum(change)[:-1]

    def _late(self, swapped, release):
        """Returns the bytes at each event that could be released and are not yet."""
        sizes = self._sizes[swapped]
        change = np.bincount(self._held[swapped] + 1, sizes, self._count + 1)
        change -= np.bincount(release, sizes, self._count + 1)
        return np.cumsum(change)[:-1]

    def _copied(self, swapped, clock):
        """Returns the times at which the copies out are done, if computing never waits."""
        took = np.cumsum(self._out[swapped])
        idle = clock[self._made[swapped] + 1] - (took - self._out[swapped])
        return took + np.maximum.accumulate(idle)

    def _releases(self, swapped, first, clock, spare):
        """Returns the events before which memory is released, if there is enough memory."""
        done = self._copied(swapped, clock)
        wanted = done + spare * (done - clock[self._made[swapped] + 1])
        found = np.searchsorted(clock[:-1], wanted - _NOTHING * clock[-1])
        return np.minimum(np.maximum(found, self._held[swapped] + 1), first[swapped])

    def _forced_releases(self, swapped, first, low, clock, spare):
        """Returns the same if computing must wait for copies out until there is memory for the next event."""
        queue = [array.tolist() for array in (self._made[swapped], self._held[swapped], self._sizes[swapped])]
        made, held, sizes, costs = *queue, self._out[swapped].tolist()
        release, done, ready = [None] * len(made), [], []
        free_from, due, put_off = (collections.defaultdict(list) for _ in range(3))
        for i, (held_until, need) in enumerate(zip(held, first[swapped].tolist(), strict=True)):
            free_from[held_until + 1].append(i)
            due[need].append(i)
        stalled = copied = late = 0.0  # seconds; end of the last copy; bytes
        following = 0  # index in the queue of the first copy that is not known to be done

        def give_back(i, e):
            nonlocal late
            if release[i] is None:
                if held[i] < e:
                    release[i] = e
                    late -= sizes[i]
                else:
                    put_off[held[i] + 1].append(i)

        for e, (now, least) in enumerate(zip(clock[:-1].tolist(), low.tolist(), strict=True)):
            now += stalled
            while len(done) < len(made) and made[len(done)] < e:
                asked = now
                copied = max(asked, copied) + costs[len(done)]
                done.append(copied)
                ready.append(copied + spare * (copied - asked))
            late += sum([sizes[i] for i in free_from.pop(e, ())])
            for i in put_off.pop(e, ()):
                give_back(i, e)
            while following < len(done) and ready[following] <= now:
                give_back(following, e)
                following += 1
            must = due.pop(e, ())
            while late + least > self.budget or any(release[i] is None for i in must):
                # Copies finish in the order of the queue: the next one that nothing holds is available first.
                while held[following] >= e:
                    give_back(following, e)
                    following += 1
                now = max(now, done[following])
                give_back(following, e)
                following += 1
            stalled = now - clock[e]
        return np.array(release, int)

    def _backs(self, swapped, order, release, first, memory):
        """Returns the events before which copies back are enqueued, and the memory in use at each event."""
        free = self.budget - memory
        back = np.empty(len(swapped), int)
        previous = 0
        needs, released, sizes = first[swapped].tolist(), release.tolist(), self._sizes[swapped].tolist()
        for i in order.tolist():
            begin, need, size = max(previous, released[i]), needs[i], sizes[i]
            if begin < need:
                between = free[begin:need]
                if between.min() < size:
                    begin += int(np.flatnonzero(between < size)[-1]) + 1
                free[begin:need] -= size
            back[i] = previous = begin
        return back, self.budget - free

    def _run(self, swapped, order, again, release, back, first):
        """Simulates the three queues; returns the seconds of waiting, and of recomputing."""
        count = len(swapped)
        indices = np.arange(count)
        events = [self._made[swapped] + 1, release, back[order], first[swapped], first[again]]
        which = np.concatenate([indices, indices, order, indices, again]).tolist()
        kinds = np.repeat(np.arange(5), [count, count, count, count, len(again)])
        events = np.concatenate(events)
        steps = np.lexsort([kinds, events])  # stable
        out, into, again_seconds = self._out[swapped].tolist(), self._in[swapped].tolist(), self._again.tolist()
        done, there = [0.0] * count, [0.0] * count
        copied = copied_back = late = recomputed = 0.0
        clock, kinds, events = self._clock.tolist(), kinds.tolist(), events.tolist()
        for step in steps.tolist():
            i, kind, begin = which[step], kinds[step], clock[events[step]]
            if kind == 0:
                done[i] = copied = max(copied, begin + late) + out[i]
            elif kind == 1:
                late = max(late, done[i] - begin)
            elif kind == 2:
                there[i] = copied_back = max(copied_back, begin + late) + into[i]
            elif kind == 3:
                late = max(late, there[i] - begin)
            else:
                late += again_seconds[i]
                recomputed += again_seconds[i]
        return late, recomputed

    def _made_schedule(self, choices, swapped, again, release, back, memory, late, recomputed):
        released, fetched = [None] * len(choices), [None] * len(choices)
        for i, b in enumerate(swapped.tolist()):
            released[b], fetched[b] = int(release[i]), int(back[i])
        for b in again.tolist():
            released[b] = int(self._held[b]) + 1
        return Schedule(
            choices=tuple([NAMES[choice] for choice in choices.tolist()]),
            release=tuple(released),
            back=tuple(fetched),
            seconds=self.compute + late,
            peak=int(memory.max(initial=0)),
            bytes_out=int(self._sizes[swapped].sum()),
            stalled=max(0.0, late - recomputed),
            recomputed=recomputed,
        )
