"""Spans of time inside of each other, and how much of each is its own."""

import contextlib
from typing import NamedTuple

_PAUSE = "pause"


class Key(NamedTuple):
    """What a span is a call of: those of one key are one row.

    Attributes:
        layer: path of the link.
        kind: one of :data:`~benchmarks.profile.kinds.KINDS`.
        name: of the primitive or function.
        shapes: of the arrays that it was given.
        engines: what computed it: own kernels and cuDNN's engines by their names; empty on NumPy.
        floor: seconds that it needs at least.
        limit: ``"bytes"`` or ``"operations"``, whichever takes longer.
    """

    layer: str
    kind: str
    name: str
    shapes: str
    engines: str
    floor: float
    limit: str


class Span:
    """A stretch of time.

    Attributes:
        key: :class:`Key`, to be set at its end; ``None`` for a step, and for what has failed.
        start: mark of the clock.
        stop: mark of the clock.
        inner: spans directly inside of it.
    """

    __slots__ = ("inner", "key", "start", "stop")

    def __init__(self, start):
        self.key, self.start, self.stop, self.inner = None, start, None, []


class Step(NamedTuple):
    """What was measured in one step.

    Attributes:
        seconds: of the step, without pauses.
        rest: seconds of it that belong to no span.
        calls: dict from :class:`Key` to a list of the seconds of each call, without the spans inside of it.
    """

    seconds: float
    rest: float
    calls: dict


class Spans:
    """Collects the spans of steps.

    Args:
        clock: :class:`~benchmarks.profile.clocks.HostClock` or
            :class:`~benchmarks.profile.clocks.DeviceClock`.

    Attributes:
        steps: list of :class:`Step`.
    """

    def __init__(self, clock):
        self._clock = clock
        self._open = []
        self.steps = []

    @contextlib.contextmanager
    def step(self):
        """The block is a step."""
        root = Span(self._clock.begin())
        self._open = [root]
        try:
            yield
        finally:
            self._open = []
        root.stop = self._clock.mark()
        self._clock.wait()
        self.steps.append(self._measured(root))

    @contextlib.contextmanager
    def span(self, *, fresh=False):
        """The block is a span, which it is given, inside of the innermost one; outside of a step it counts nowhere.

        Args:
            fresh: whether a device is to be held back for it anew.
        """
        if not self._open:
            yield Span(None)
            return
        if self._clock.is_due(fresh):
            self._pause()
        span = Span(self._clock.mark())
        self._open[-1].inner.append(span)
        self._open.append(span)
        try:
            yield span
        finally:
            span.stop = self._clock.mark()
            self._open.pop()

    def _pause(self):
        pause = Span(None)
        pause.key = _PAUSE
        pause.start, pause.stop = self._clock.hold()
        self._open[-1].inner.append(pause)

    def _measured(self, root):
        seconds = self._clock.seconds
        calls, rest, paused, waiting = {}, 0.0, 0.0, [root]
        while waiting:
            span = waiting.pop()
            own = seconds(span.start, span.stop) - sum(seconds(each.start, each.stop) for each in span.inner)
            if span.key is None:
                rest += own
            elif span.key == _PAUSE:
                paused += own
            else:
                calls.setdefault(span.key, []).append(own)
            waiting += reversed(span.inner)
        return Step(seconds(root.start, root.stop) - paused, rest, calls)
