"""What is done on a stand-in device now, or by the launches of the graph that is being captured.

While something is captured nothing is computed: what would have been launched is written down with addresses, shapes
and numbers, new arrays get memory from the pool of the capture, and :meth:`Work.run` does it all in that order. Memory
is NaN before it is written, and again when it is free: what a graph reads of the past, or of memory that somebody else
has by now, is seen.

There are three streams, each with free memory of its own; the third one is that of NCCL. A graph keeps the order of
each of them, and what one waits for from another. Beyond that a launch does the work of the second stream as late as it
may and that of the third one as early, the next one the other way round: both must come to the same. Outside of a graph
the third stream, see :func:`on_third_stream`, is as late as it may be.
"""

import collections
import contextlib
import ctypes
import functools

import numpy as np

from benchmarks.null_device.null_memory import Pool
from mixprec.backends import device_log

FIRST, SECOND, THIRD = STREAMS = "the first stream", "the second stream", "the third stream"
_stream = FIRST  # the current one
_later = None  # where the work of the third stream goes outside of a capture, while that is the current one


class NanPool:
    """Memory that is NaN when it is given out, and again when it comes back; to work on the same stream only.

    A graph makes it NaN in each launch, too, before that stream gets the next memory, whatever that is.
    """

    def __init__(self):
        self._arenas = {stream: _Arena(stream) for stream in STREAMS}
        self._forgotten = 0

    def allocate(self, size):
        """Returns a :class:`~benchmarks.null_device.null_memory.Block` for work on the current stream."""
        return self._arenas[_stream].allocate(size)

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

    def holds(self, arena):
        """Whether an arena is one of these."""
        return arena in self._arenas.values()


class _Arena(Pool):
    _fill = ctypes.memset  # also there when Python ends

    def __init__(self, stream):
        super().__init__()
        self._stream = stream
        self._freed = []  # in the capture that is under way
        self.used_bytes = 0

    def allocate(self, size):
        for address, freed in self._freed:
            _work.add_to(self._stream, self._fill, address, 0xFF, freed)
        self._freed.clear()
        block = super().allocate(size)
        self.used_bytes += block.size
        self._fill(block.address, 0xFF, size)
        return block

    def take_back(self, address, size):
        if self._stream == THIRD and _work is None:  # its work may still be to be done: the memory is lost
            return
        self._fill(address, 0xFF, size)
        if _work is not None and _work.pool.holds(self):
            self._freed.append((address, size))
        self.used_bytes -= size
        super().take_back(address, size)


_eager = NanPool()
_work = None  # what is being captured
_watching = 0  # blocks of all threads, which take turns


class Work:
    """What was captured.

    Args:
        pool: where new arrays get their memory.
    """

    def __init__(self, pool):
        self.pool = pool
        self._queues = {stream: [] for stream in STREAMS}  # of (function, event to wait for, event that is there)
        self._events = 0
        self.workspaces = {}  # the stream by the address

    def add(self, function, *arguments):
        """Adds a call to the work of the current stream."""
        self.add_to(_stream, function, *arguments)

    def add_to(self, stream, function, *arguments):
        """Adds a call to the work of a stream."""
        assert stream == FIRST or self._queues[stream], f"{stream} waits for nothing: no part of the graph"
        self._queues[stream].append((functools.partial(function, *arguments), None, None))

    def record(self, stream):
        """Returns a new event, which is there when a stream has done all that it was asked so far."""
        self._events += 1
        self._queues[stream].append((None, None, self._events))
        return self._events

    def wait(self, stream, event):
        """Lets a stream wait for an event."""
        self._queues[stream].append((None, event, None))

    def check_joined(self):
        """Raises what CUDA does if the first stream does not wait for all that the others were asked."""
        waited = {event for _, event, _ in self._queues[FIRST]} - {None}
        if any(queue[-1][2] not in waited for queue in (self._queues[SECOND], self._queues[THIRD]) if queue):
            raise RuntimeError("cudaErrorStreamCaptureUnjoined")

    def run(self, *, late=True):
        """Makes all calls.

        Args:
            late: whether the second stream does nothing before another one waits for it; otherwise it does all at
                once that it need not wait for. The third one is early if the second one is late.
        """
        assert _work is None, "a graph was launched while another one was captured"
        order = (THIRD, FIRST, SECOND) if late else (SECOND, FIRST, THIRD)
        queues = {stream: collections.deque(self._queues[stream]) for stream in order}
        there = {None}
        with np.errstate(all="ignore"):
            while queue := next((queue for queue in queues.values() if queue and queue[0][1] in there), None):
                function, _, event = queue.popleft()
                there.add(event)
                if function is not None:
                    function()
        assert not any(queues.values()), "two streams wait for each other"


@contextlib.contextmanager
def capturing(pool):
    """Inside of the block nothing is computed; gives the :class:`Work` that it would have been."""
    global _work
    assert _work is None, "one capture at a time"
    _work = Work(pool)
    try:
        yield _work
        _work.check_joined()
    finally:
        _work = None


@contextlib.contextmanager
def on_second_stream():
    """Inside of the block the second stream is the current one."""
    global _stream
    assert _stream == FIRST
    _stream = SECOND
    try:
        yield
    finally:
        _stream = FIRST


@contextlib.contextmanager
def on_third_stream(later):
    """Inside of the block the third stream is the current one.

    Args:
        later: list to which its work is added, functions without arguments, outside of a capture.
    """
    global _stream, _later
    assert _stream == FIRST
    _stream, _later = THIRD, later
    try:
        yield
    finally:
        _stream, _later = FIRST, None


def record(stream):
    """Returns an event of a stream; ``None`` outside of a capture, where all is done at once."""
    return None if _work is None else _work.record(stream)


def wait(stream, event):
    """Lets a stream wait for an event."""
    if _work is not None:
        _work.wait(stream, event)


def is_capturing():
    """Whether somebody captures."""
    return _work is not None


@contextlib.contextmanager
def watching():
    """Inside of the block reads, uploads and new memory are noted."""
    global _watching
    _watching += 1
    try:
        yield
    finally:
        _watching -= 1


def do(function, *arguments):
    """Calls what works on addresses: now, later, or when the graph that is being captured is launched."""
    if _work is None and _later is not None:
        _later.append(functools.partial(function, *arguments))
    elif _work is None:
        function(*arguments)
    else:
        _work.add(function, *arguments)


def do_in(workspace, function, *arguments):
    """Calls what writes into a workspace on the way; of a graph each of them belongs to one stream.

    Args:
        workspace: its address, 0 for none.
        function, arguments: as for :func:`do`.
    """
    if _work is not None and workspace:
        owner = _work.workspaces.setdefault(workspace, _stream)
        assert owner == _stream, "two streams have one workspace"
    do(function, *arguments)


def eager_bytes():
    """Returns how many bytes are in use that were not allocated in a capture."""
    return _eager.used_bytes


def memory(size):
    """Returns new memory, full of NaN, a :class:`~benchmarks.null_device.null_memory.Block`."""
    block = (_eager if _work is None else _work.pool).allocate(size)
    if _watching:
        device_log.record("memory", "new", block.address, size)
    return block


def read(name):
    """To be called when a function with this name lets the host wait for the device."""
    _stop("D2H transfers")
    if _watching:
        device_log.record("read", name)


def upload(name, size):
    """To be called when a function with this name copies bytes of the host to the device."""
    _stop("H2D transfers")
    if _watching:
        device_log.record("upload", name, size)


def _stop(what):
    if _work is not None:  # in CuPy's words
        raise RuntimeError(f"the current stream is capturing, so {what} are disallowed")
