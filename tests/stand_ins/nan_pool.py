"""Memory of the stand-in device of ``graph_work``, with a limit: NaN before it is written, and when it is free."""

import contextlib
import ctypes
import math
import types
import weakref

from benchmarks.recording_device.memory import Pool

FIRST, SECOND, THIRD = "the first stream", "the second stream", "the third stream"
OUT, BACK = "the stream of copies out", "the stream of copies back"
STREAMS = FIRST, SECOND, THIRD, OUT, BACK
now = types.SimpleNamespace(stream=FIRST, work=None)  # the current stream, and what is being captured


class OutOfMemoryError(MemoryError):
    """Has the name and the words of CuPy's."""


class NanPool:
    """Memory that is NaN when it is given out, and again when it comes back; to work on the same stream only.

    A graph makes it NaN in each launch, too, before that stream gets the next memory, whatever that is.

    Attributes:
        peak: bytes that were in use at most.
    """

    def __init__(self):
        self._arenas = {stream: _Arena(stream) for stream in STREAMS}
        self.peak = 0
        _pools.add(self)

    def allocate(self, size):
        """Returns a :class:`~benchmarks.recording_device.memory.Block` for work on the current stream.

        Raises:
            OutOfMemoryError: more would be in use than a :func:`metering` allows.
        """
        block = self._arenas[now.stream].allocate(size)
        before, self.peak = self.peak, max(self.peak, self.used_bytes)
        used = in_use()
        if used > limit():
            self.peak = before
            raise OutOfMemoryError(
                f"Out of memory allocating {block.size:,} bytes (allocated so far: {in_use():,} bytes, limit set to: "
                f"{limit():,} bytes)."
            )
        for meter in _meters:
            meter.peak = max(meter.peak, used)
        return block

    @property
    def used_bytes(self):
        """Those that are in use."""
        return sum(arena.used_bytes for arena in self._arenas.values())

    @property
    def bytes(self):
        """All that there are."""
        return sum(arena.bytes for arena in self._arenas.values())

    def free_all_blocks(self):
        """Counts only what is in use from now on; to be called when nobody allocates any more."""
        for arena in self._arenas.values():
            arena.bytes = arena.used_bytes
        self.peak = self.used_bytes

    def holds(self, arena):
        """Whether an arena is one of these."""
        return arena in self._arenas.values()


class _Arena(Pool):
    _fill = ctypes.memset  # also there when Python ends
    _now = now

    def __init__(self, stream):
        super().__init__()
        self._stream = stream
        self._freed = []  # in the capture that is under way
        self.used_bytes = 0

    def allocate(self, size):
        for address, freed in self._freed:
            now.work.add_to(self._stream, self._fill, address, 0xFF, freed)
        self._freed.clear()
        block = super().allocate(size)
        self.used_bytes += block.size
        self._fill(block.address, 0xFF, size)
        return block

    def take_back(self, address, size):
        work = self._now.work
        if self._stream == THIRD and work is None:  # its work may still be to be done: the memory is lost
            return
        self._fill(address, 0xFF, size)
        if work is not None and work.pool.holds(self):
            self._freed.append((address, size))
        self.used_bytes -= size
        super().take_back(address, size)


_pools = weakref.WeakSet()
_meters = []
eager = NanPool()


def in_use():
    """Returns the bytes that are in use: of a graph those that are so at the most, as nobody else can have them."""
    return eager.used_bytes + sum(pool.peak for pool in _pools if pool is not eager)


def limit():
    """Returns the bytes that may be in use."""
    return min((meter.limit for meter in _meters), default=math.inf)


@contextlib.contextmanager
def metering(limit=math.inf):
    """Inside of the block no more bytes can be in use; gives an object with ``limit`` and ``peak``, bytes."""
    meter = types.SimpleNamespace(limit=limit, peak=in_use())
    _meters.append(meter)
    try:
        yield meter
    finally:
        _meters[:] = [each for each in _meters if each is not meter]
