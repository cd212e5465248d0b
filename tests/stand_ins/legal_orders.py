"""Orders in which streams may do their work, as far as events allow.

The work of a stream is a ``collections.deque`` of ``(function, event to wait for, event that is there then)``; each may
be ``None``.
"""

import collections
import random

_ANOTHER = 0.15  # how often, among the steps, another stream is preferred


class Order:
    """Chooses the stream whose turn it is.

    Args:
        streams: the preferred one first.
        seed: for a random order that is legal, another one for each number; ``None`` for that of ``streams``.
    """

    def __init__(self, streams, seed=None):
        self._streams = list(streams)
        self._random = None if seed is None else random.Random(seed)

    def next(self, queues, there):
        """Returns the stream that goes on, or ``None`` if none can.

        Args:
            queues: ``{stream: its work}``.
            there: set of events.
        """
        if self._random is not None and self._random.random() < _ANOTHER:
            self._random.shuffle(self._streams)
        return next((each for each in self._streams if queues[each] and queues[each][0][1] in there), None)

    def goes_on(self):
        """Whether a stream that need not go on does so; never without a seed."""
        return self._random is not None and self._random.random() < 0.5


class Lagging:
    """Work of streams beside one that does everything at once: theirs is done when that one waits for it.

    Args:
        streams: all but that one.
    """

    def __init__(self, streams):
        self.queues = {stream: collections.deque() for stream in streams}
        self._there = {None}
        self._events = 0
        self._order = Order(streams)

    def reorder(self, seed=None):
        """Does some of the work earlier, at random; with ``None`` none of it."""
        self._order = Order(self.queues, seed)

    def record(self, stream):
        """Returns a new event, the end of all that a stream was asked so far."""
        self._events += 1
        event = ("outside of a capture", self._events)
        self.queues[stream].append((None, None, event))
        return event

    def go_on(self):
        """Perhaps does a part of the work."""
        while self._order.goes_on() and (stream := self._order.next(self.queues, self._there)):
            self._do_next(stream)

    def finish(self, event):
        """Does what comes before an event."""
        while event not in self._there:
            self._do_next(self._before(event))

    def _before(self, event):
        """Returns the stream that has to go on for an event."""
        stream = next(each for each, queue in self.queues.items() if any(item[2] == event for item in queue))
        first = self.queues[stream][0][1]
        return stream if first in self._there else self._before(first)

    def _do_next(self, stream):
        function, _, event = self.queues[stream].popleft()
        self._there.add(event)
        if function is not None:
            function()
