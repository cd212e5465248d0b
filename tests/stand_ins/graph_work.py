"""What is done on a stand-in device now, or by the launches of the graph that is being captured.

While something is captured nothing is computed: what would have been launched is written down with addresses, shapes
and numbers, new arrays get memory from the pool of the capture, and :meth:`Work.run` does it all in that order. Memory
is NaN before it is written, and again when it is free: what a graph reads of the past, or of memory that somebody else
has by now, is seen.

There are five streams, each with free memory of its own. The third one is that of NCCL; two more copy to the memory of
the host and back. A graph keeps the order of each of them, and what one waits for from another. Beyond that a launch
does the work of the second stream as late as it may and that of the third one as early, the next one the other way
round: both must come to the same. A seed gives any other order that is legal. Outside of a graph the third stream, see
:func:`on_third_stream`, and copies are as late as they may be, or at random earlier.
"""

import collections
import contextlib
import functools

import numpy as np

from mixprec.backends import device_log
from tests.stand_ins import nan_pool
from tests.stand_ins.legal_orders import Lagging, Order
from tests.stand_ins.nan_pool import BACK, FIRST, OUT, SECOND, STREAMS, THIRD, NanPool, now

__all__ = ["BACK", "FIRST", "OUT", "SECOND", "STREAMS", "THIRD", "NanPool"]

_COPIES = OUT, BACK
_later = None  # where the work of the third stream goes outside of a capture, while that is the current one
_watching = 0  # blocks of all threads, which take turns
_lagging = Lagging(_COPIES)  # copies outside of a capture


class Work:
    """What was captured.

    Args:
        pool: where new arrays get their memory.

    Attributes:
        key: an object of its own, which may be kept longer.
    """

    def __init__(self, pool):
        self.pool, self.key = pool, object()
        self._queues = {stream: [] for stream in STREAMS}  # of (function, event to wait for, event that is there)
        self._events = 0
        self.workspaces = {}  # the stream by the address

    def add(self, function, *arguments):
        """Adds a call to the work of the current stream."""
        self.add_to(now.stream, function, *arguments)

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
        if any(queue[-1][2] not in waited for stream, queue in self._queues.items() if stream != FIRST and queue):
            raise RuntimeError("cudaErrorStreamCaptureUnjoined")

    def run(self, *, late=True, seed=None):
        """Makes all calls.

        Args:
            late: whether the second stream and copies do nothing before another one waits for it; otherwise they do all
                at once that they need not wait for. The third one is early if the second one is late.
            seed: for another order, at random; ``None`` for one of these two.
        """
        assert now.work is None, "a graph was launched while another one was captured"
        order = Order((THIRD, FIRST, SECOND, OUT, BACK) if late else (BACK, OUT, SECOND, FIRST, THIRD), seed)
        queues = {stream: collections.deque(queue) for stream, queue in self._queues.items()}
        there = {None}
        with np.errstate(all="ignore"):
            while stream := order.next(queues, there):
                function, _, event = queues[stream].popleft()
                there.add(event)
                if function is not None:
                    function()
        assert not any(queues.values()), "two streams wait for each other"


@contextlib.contextmanager
def capturing(pool):
    """Inside of the block nothing is computed; gives the :class:`Work` that it would have been."""
    assert now.work is None, "one capture at a time"
    now.work = Work(pool)
    try:
        yield now.work
        now.work.check_joined()
    finally:
        now.work = None


@contextlib.contextmanager
def on_second_stream():
    """Inside of the block the second stream is the current one."""
    assert now.stream == FIRST
    now.stream = SECOND
    try:
        yield
    finally:
        now.stream = FIRST


@contextlib.contextmanager
def on_third_stream(later):
    """Inside of the block the third stream is the current one.

    Args:
        later: list to which its work is added, functions without arguments, outside of a capture.
    """
    global _later
    assert now.stream == FIRST
    now.stream, _later = THIRD, later
    try:
        yield
    finally:
        now.stream, _later = FIRST, None


def record(stream):
    """Returns an event of a stream; ``None`` outside of a capture where all is done at once: what is no copy."""
    if now.work is not None:
        return now.work.record(stream)
    return _lagging.record(stream) if stream in _COPIES else None


def wait(stream, event):
    """Lets a stream wait for an event."""
    if now.work is not None:
        assert isinstance(event, int), "cudaErrorStreamCaptureIsolation"
        now.work.wait(stream, event)
        return
    assert not isinstance(event, int), "an event of a capture"
    if stream in _COPIES:
        _lagging.queues[stream].append((None, event, None))
    else:
        _lagging.finish(event)


def copy(stream, function, *arguments):
    """Asks a stream for copies to do its next one."""
    if now.work is not None:
        now.work.add_to(stream, function, *arguments)
    else:
        _lagging.queues[stream].append((functools.partial(function, *arguments), None, None))


@contextlib.contextmanager
def copies_at_random(seed):
    """Inside of the block copies outside of a capture are done early or late, at random."""
    _lagging.reorder(seed)
    try:
        yield
    finally:
        _lagging.reorder()


def is_capturing():
    """Whether somebody captures."""
    return now.work is not None


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
    if now.work is not None:
        now.work.add(function, *arguments)
    elif _later is not None:
        _later.append(functools.partial(function, *arguments))
    else:
        _lagging.go_on()
        function(*arguments)


def do_in(workspace, function, *arguments):
    """Calls what writes into a workspace on the way; of a graph each of them belongs to one stream.

    Args:
        workspace: its address, 0 for none.
        function, arguments: as for :func:`do`.
    """
    if now.work is not None and workspace:
        owner = now.work.workspaces.setdefault(workspace, now.stream)
        assert owner == now.stream, "two streams have one workspace"
    do(function, *arguments)


def eager_bytes():
    """Returns how many bytes are in use that were not allocated in a capture."""
    return nan_pool.eager.used_bytes


def memory(size):
    """Returns new memory, full of NaN, a :class:`~benchmarks.recording_device.memory.Block`."""
    _lagging.go_on()
    block = (nan_pool.eager if now.work is None else now.work.pool).allocate(size)
    if _watching:
        device_log.record("memory", "new", block.address, size)
    return block


def read(name):
    """To be called when a function with this name lets the host wait for the device."""
    _stop("D2H transfers")
    if _watching:
        device_log.record("read", name)


def upload(name):
    """To be called when a function with this name copies something of the host to the device."""
    _stop("H2D transfers")
    if _watching:
        device_log.record("upload", name)


def _stop(what):
    if now.work is not None:  # in CuPy's words
        raise RuntimeError(f"the current stream is capturing, so {what} are disallowed")
