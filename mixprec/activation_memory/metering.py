"""Measures a round: the time of each event, and the memory in use outside of the buffers."""

import collections
import dataclasses

from mixprec.activation_memory.recording import Buffer, Event, Recomputation, Recording


class Meter:
    """Measures the events of one round, one after the other.

    The time from :meth:`resume` to the next :meth:`lap` is attributed to the event given there, and so is the memory in
    use since the last lap. Copies run between a lap and the next ``resume``.

    The first event begins when the meter is made. Use it inside of ``copies.measuring()``.

    Args:
        copies: :class:`~mixprec.backends.copy_interface.Copies` of the device.
    """

    def __init__(self, copies):
        self._copies = copies
        self._resident = 0  # bytes of buffers on the device
        self._others = collections.defaultdict(int)
        self._ticks = []  # (number of the event, tick, tick)
        copies.peak()
        self._began = copies.tick()

    def came(self, size):
        """Records that a buffer has come to the device."""
        self._resident += size

    def went(self, size):
        """Records that a buffer has left the device."""
        self._resident -= size

    def lap(self, number):
        """Attributes time and memory since the last call to an event."""
        now = self._copies.tick()
        self._ticks.append((number, self._began, now))
        self._others[number] = max(self._others[number], self._copies.peak() - self._resident)
        self._began = now

    def resume(self):
        """Starts counting again after copies; memory that has left is not counted."""
        self._copies.peak()
        self._began = self._copies.tick()

    def seconds(self):
        """Returns the seconds of each event; waits for the device if they have not been measured yet."""
        found = collections.defaultdict(float)
        for number, begin, end in self._ticks:
            found[number] += self._copies.seconds(begin, end)
        return found

    def events(self, signature, names):
        """Returns a tuple of :class:`~mixprec.activation_memory.recording.Event`."""
        seconds = self.seconds()
        return tuple(
            Event(name, is_forward, seconds[number], max(0, self._others[number if number in self._others else 1]))
            for number, ((is_forward, _, _), name) in enumerate(zip(signature, names, strict=True))
        )


def recording_of(round_, recipes):
    """Returns the :class:`~mixprec.activation_memory.recording.Recording` of a round that has been measured.

    Args:
        round_: :class:`~mixprec.activation_memory.rounds.Round` with a meter.
        recipes: ``{number of a buffer: (numbers of events that compute it, numbers of buffers that they read)}``.
    """
    events = round_.meter.events(round_.signature, round_.names)
    buffers = []
    for buffer in round_.buffers:
        needs = tuple(dict.fromkeys(buffer.needs)) or (len(events) - 1,)
        held = needs[0] if buffer.held is None else min(buffer.held, needs[0])
        made = min(buffer.made, held)
        again = None
        if buffer.number in recipes:
            numbers, sources = recipes[buffer.number]
            again = Recomputation(sum(events[number].seconds for number in numbers), tuple(sources))
        buffers.append(Buffer(buffer.size, buffer.producer, made, held, needs, again, buffer.is_convolution_input))
    return Recording(events, tuple(buffers))


def merged(first, second, read_later):
    """Returns a recording with the shorter times of two recordings of a round, and the memory of the second.

    The measurement of the first recording began during its first function.

    Buffers that a later round has read are not recomputed: parameters might have changed by then.

    Args:
        first, second: :class:`~mixprec.activation_memory.recording.Recording`.
        read_later: set of the numbers of buffers that a later round has read.
    """
    events = tuple(
        Event(b.name, b.is_forward, min(a.seconds or b.seconds, b.seconds), b.others)
        for a, b in zip(first.events, second.events, strict=True)
    )
    buffers = tuple(
        dataclasses.replace(buffer, recomputation=None) if number in read_later else buffer
        for number, buffer in enumerate(second.buffers)
    )
    return Recording(events, buffers)
