"""Clocks of the host, and of a device that is held back so that it never waits for the host."""

import pathlib
import time

_SPIN = pathlib.Path(__file__).with_name("spin.cu")
_SPANS = 100  # between two pauses: their 200 events, and a few kernels each, fit into the queue of a stream, about 1000
_HELD = 30 * 10**6  # nanoseconds for which a device is held back at first
_LONGEST = 10**9


class HostClock:
    """Of NumPy: what is computed is done when its call returns.

    Args:
        now: callable that gives seconds.
    """

    late = 0

    def __init__(self, now=time.perf_counter):
        self.mark = now

    def begin(self):
        """Returns the mark at which a step begins."""
        return self.mark()

    def is_due(self, fresh):
        """Whether :meth:`DeviceClock.hold` is due: never."""
        return False

    def wait(self):
        """Waits until all marks of a step are known."""

    def seconds(self, start, stop):
        """Returns the seconds between two marks."""
        return stop - start


class DeviceClock:
    """Of a GPU: marks are events on the current stream.

    The host is often slower than the device, and events would measure it instead. So the device is held back, by a
    kernel that spins, while the host asks for the next calls: these are then done one right after the other. What a
    stream has been asked is in a queue; when that is full, after about 1000 kernels and events, the host waits, and its
    lead shrinks to that. That is why the device is held back again, after it has done all, for every 100 calls. If it
    was not held back long enough, it is from then on twice as long, up to a second.

    Args:
        cuda: ``cupy.cuda``.
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of the device.

    Attributes:
        late: how often the device went on before the host had asked for all that was to follow.
    """

    def __init__(self, cuda, launcher):
        self._cuda, self._launcher = cuda, launcher
        self._spin = launcher.compile(source(launcher.threads), ("spin",))["spin"]
        self._events, self._used = [], 0
        self._nanoseconds = _HELD
        self._spans = 0  # since the last pause
        self._released = None  # the event after the last kernel that spins
        self.late = 0

    def begin(self):
        """Returns the mark at which a step begins, with the device held back. Earlier marks are void."""
        self._used = self._spans = 0
        return self.hold()[1]

    def mark(self):
        """Returns a mark, good until :meth:`begin`."""
        if self._used == len(self._events):
            self._events.append(self._cuda.Event())
        event = self._events[self._used]
        self._used += 1
        event.record()
        return event

    def is_due(self, fresh):
        """Whether :meth:`hold` is due before the next call; ``fresh``: whether that is to have the queue for itself."""
        due = fresh or self._spans == _SPANS
        self._spans = 1 if due else self._spans + 1
        return due

    def hold(self):
        """Waits until the device has nothing to do, and holds it back; returns marks before and after that."""
        start = self.mark()
        self.wait()
        self._launcher.launch(self._spin, 1, [self._nanoseconds])
        self._released = self.mark()
        return start, self._released

    def wait(self):
        """Waits until all marks are known."""
        if self._released is not None and self._released.done:
            self.late += 1
            self._nanoseconds = min(2 * self._nanoseconds, _LONGEST)
        self._released = None
        self._cuda.get_current_stream().synchronize()

    def seconds(self, start, stop):
        """Returns the seconds between two marks, after :meth:`wait`."""
        return self._cuda.get_elapsed_time(start, stop) / 1e3


def source(threads):
    """Returns the CUDA source of the kernel that spins, for so many threads in a block."""
    return f"#define THREADS {threads}\n{_SPIN.read_text('utf-8')}"
