"""What is done on a stand-in device now, or by the launches of the graph that is being captured.

While something is captured nothing is computed: what would have been launched is written down with addresses, shapes
and numbers, new arrays get memory from the pool of the capture, and :meth:`Work.run` does it all in that order. Memory
is NaN before it is written, and again when it is free: what a graph reads of the past, or of memory that somebody else
has by now, is seen.
"""

import contextlib
import ctypes
import functools

import numpy as np

from benchmarks.recording.memory import Pool
from mixprec.backends import notes


class NanPool(Pool):
    """A pool that gives out NaN, and makes NaN of what it gets back.

    Attributes:
        used_bytes: those that are in use.
    """

    _fill = ctypes.memset  # also there when Python ends

    def __init__(self):
        super().__init__()
        self.used_bytes = 0

    def allocate(self, size):
        block = super().allocate(size)
        self.used_bytes += block.size
        self._fill(block.address, 0xFF, size)
        return block

    def take_back(self, address, size):
        self._fill(address, 0xFF, size)
        self.used_bytes -= size
        super().take_back(address, size)

    def free_all_blocks(self):
        """Counts only what is in use from now on; to be called when nobody allocates any more."""
        self.bytes = self.used_bytes


_eager = NanPool()
_work = None  # what is being captured
_watching = False


class Work:
    """What was captured.

    Args:
        pool: where new arrays get their memory.
    """

    def __init__(self, pool):
        self.pool = pool
        self._functions = []

    def add(self, function, *arguments):
        """Adds a call."""
        self._functions.append(functools.partial(function, *arguments))

    def run(self):
        """Makes all calls, in order."""
        assert _work is None, "a graph was launched while another one was captured"
        with np.errstate(all="ignore"):
            for function in self._functions:
                function()


@contextlib.contextmanager
def capturing(pool):
    """Inside of the block nothing is computed; gives the :class:`Work` that it would have been."""
    global _work
    assert _work is None, "one capture at a time"
    _work = Work(pool)
    try:
        yield _work
    finally:
        _work = None


def is_capturing():
    """Whether somebody captures."""
    return _work is not None


@contextlib.contextmanager
def watching():
    """Inside of the block reads, uploads and new memory are noted."""
    global _watching
    outer, _watching = _watching, True
    try:
        yield
    finally:
        _watching = outer


def do(function, *arguments):
    """Calls what works on addresses: now, or when the graph that is being captured is launched."""
    if _work is None:
        function(*arguments)
    else:
        _work.add(function, *arguments)


def eager_bytes():
    """Returns how many bytes are in use that were not allocated in a capture."""
    return _eager.used_bytes


def memory(size):
    """Returns new memory, full of NaN, a :class:`~benchmarks.recording.memory.Block`."""
    block = (_eager if _work is None else _work.pool).allocate(size)
    if _watching:
        notes.take("memory", "new", block.address, size)
    return block


def read(name):
    """To be called when a function with this name lets the host wait for the device."""
    _stop("D2H transfers")
    if _watching:
        notes.take("read", name)


def upload(name, size):
    """To be called when a function with this name copies bytes of the host to the device."""
    _stop("H2D transfers")
    if _watching:
        notes.take("upload", name, size)


def _stop(what):
    if _work is not None:  # in CuPy's words
        raise RuntimeError(f"the current stream is capturing, so {what} are disallowed")
