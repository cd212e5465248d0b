"""Copies between arrays of NumPy and a file, by two threads; see :mod:`mixprec.backends.copy_interface`.

The file has no name: it always disappears with the process. It is read and written by system calls and not mapped into
memory: on a full disk these fail, while a mapping would end the process, and they are as fast.
"""

import collections
import concurrent.futures
import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
import time
import tracemalloc
import weakref

import numpy as np

from mixprec.backends.copy_interface import Copies, Layout
from mixprec.backends.memory import flat, is_dense
from mixprec.base.messages import OneLineError
from mixprec.base.process_limits import host_memory, resident_memory

_UNIT = mmap.ALLOCATIONGRANULARITY
_MMAP_THRESHOLD, _OWN_PAGES = -3, 2**20  # of mallopt: larger arrays have pages of their own
_PROBE = 2**25  # bytes of a copy by which the speed is measured


class FileCopies(Copies):
    """Copies to a file in a folder.

    Args:
        folder: path; the file needs the space of all slots.

    Raises:
        OneLineError: no file can be made there.
    """

    def __init__(self, folder):
        self._folder = os.fspath(folder)
        try:
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise OneLineError(f"cannot offload to the folder {self._folder!r}: {error.strerror}") from None
        _give_back_freed_memory()
        self._end = 0  # of the slots
        self._free = collections.defaultdict(list)  # by capacity
        self._out, self._back = (
            concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"mixprec-copies-{way}")
            for way in ("out", "back")
        )
        self._last = {}  # by thread: the future of its last task
        self._rates = None
        self._process = os.getpid()
        self._untraced = 0  # bytes of the process that tracemalloc does not know
        self._closing = weakref.finalize(self, _close, self._fd, (self._out, self._back))

    def root_of(self, array):
        if not isinstance(array, np.ndarray):
            return None
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if not type(array) is type(root) is np.ndarray or not root.flags.owndata:
            return None
        is_whole = root.nbytes and is_dense(root) and min(root.strides, default=0) >= 0
        return root if is_whole and not root.dtype.hasobject else None

    def size_of(self, root):
        return root.nbytes

    def token_of(self, root):
        return _token_of(root)

    def layout_of(self, array):
        root = self.root_of(array)
        return Layout(array.ctypes.data - root.ctypes.data, array.shape, array.dtype, array.strides)

    def array_in(self, root, layout):
        memory = flat(root).view(np.uint8)
        return np.ndarray(layout.shape, layout.dtype, memory, layout.offset, layout.strides)

    def take(self, size):
        capacity = -(-size // _UNIT) * _UNIT
        with contextlib.suppress(IndexError):  # another thread may only add some
            slot = self._free[capacity].pop()
            slot.size = size
            return slot
        slot = _Slot(self._end, capacity, size)
        self._end += capacity
        return slot

    def give(self, slot):
        self._free[slot.capacity].append(slot)

    def trim(self):
        self.join()
        for slots in list(self._free.values()):
            while slots:
                self._free_space(slots.pop())

    def _free_space(self, slot):
        """Makes a hole in an unused part of the file; some file systems cannot."""
        with contextlib.suppress(OSError):
            if os.fstat(self._fd).st_size < self._end:
                os.ftruncate(self._fd, self._end)
            with mmap.mmap(self._fd, slot.capacity, offset=slot.offset) as mapped:
                mapped.madvise(mmap.MADV_REMOVE)

    def out(self, root, slot):
        root = root.array() if isinstance(root, _Token) else root
        return self._submit(self._out, slot, os.pwritev, root, written=True)

    def back(self, slot):
        root = np.empty(slot.size, np.uint8)
        return root, self._submit(self._back, slot, os.preadv, root)

    def _submit(self, executor, slot, move, root, *, written=False):
        if os.getpid() != self._process:
            raise OneLineError(
                "a forked process cannot continue offloading to its parent's file: make a new mixprec.offload"
            )
        before = (slot.last, slot.written)
        box = [flat(root).view(np.uint8)]
        future = executor.submit(_copy, self._fd, self._folder, move, slot.offset, box, before)
        slot.last = self._last[executor] = future
        if written:
            slot.written = future
        return future

    def wait(self, mark):
        mark.result()

    def join(self):
        concurrent.futures.wait(self._last.values())
        self._last.clear()

    @contextlib.contextmanager
    def measuring(self):
        is_started = not tracemalloc.is_tracing()
        if is_started:
            tracemalloc.start()
        traced, _ = tracemalloc.get_traced_memory()
        self._untraced = resident_memory() - traced
        tracemalloc.reset_peak()
        try:
            yield
        finally:
            if is_started:
                tracemalloc.stop()

    def peak(self):
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        return peak + self._untraced

    def allocated(self):
        return resident_memory()

    def tick(self):
        return time.perf_counter()

    def seconds(self, start, end):
        return end - start

    def total(self):
        return host_memory()

    def bus(self):
        """See :class:`Copies`; copies that fit into the page cache are faster than the disk."""
        if self._rates is None:
            slots, small, memory = [self.take(_PROBE) for _ in range(2)], self.take(1), np.zeros(_PROBE, np.uint8)
            for slot in slots:  # in the first copy the file system looks for space
                self.wait(self.out(memory, slot))
            took = []
            for _ in range(3):
                start = time.perf_counter()
                self.wait(self.out(memory[:1], small))
                latency = time.perf_counter() - start
                out, (_, back) = self.out(memory, slots[0]), self.back(slots[1])
                took.append((out.result(), back.result(), latency))
            out, back, latency = (max(min(each), 1e-9) for each in zip(*took, strict=True))
            self._rates = _PROBE / out, _PROBE / back, latency
            for slot in (*slots, small):
                self.give(slot)
        return self._rates

    def close(self):
        self._closing()


class _Slot:
    """A part of the file.

    Attributes:
        offset, capacity: bytes.
        size: bytes that are in use.
        last: future of the last copy to or from it, or ``None``.
        written: future of the last copy to it.
    """

    def __init__(self, offset, capacity, size):
        self.offset, self.capacity, self.size = offset, capacity, size
        self.last = self.written = None


class _Token:
    """A token; its only reference, in ``_tokens``, disappears with the array.

    Attributes:
        array: weak reference to the root.
    """

    def __init__(self, array):
        self.array = array


_tokens = {}  # by the id of a root, as long as there is one


def _token_of(root):
    key = id(root)
    token = _tokens.get(key)
    if token is None:  # a root's token disappears with it, before another root can have its id
        token = _tokens[key] = _Token(weakref.ref(root, lambda _: _tokens.pop(key, None)))
    return token


def _copy(fd, folder, move, offset, box, before):
    """Copies between memory and the file, in a thread; returns the seconds.

    Args:
        fd: descriptor of the file.
        folder: its folder, for messages.
        move: ``os.pwritev`` or ``os.preadv``.
        offset: offset in the file.
        box: list of an array of bytes, which is taken out, so that the waiting caller holds the last reference.
        before: ``(last, written)`` of the slot, see :class:`_Slot`.
    """
    last, written = before
    if last is not None:
        concurrent.futures.wait([last])
    if move is os.preadv:
        written.result()
    start = time.perf_counter()
    number = _move(fd, move, offset, box)
    if number:  # not in `_move`: the traceback would keep the memory
        what = "write to" if move is os.pwritev else "read from"
        raise OneLineError(f"cannot {what} the folder {folder!r}, where arrays are offloaded: {os.strerror(number)}")
    return time.perf_counter() - start


def _move(fd, move, offset, box):
    """Returns the number of an error, or 0."""
    memory = memoryview(box.pop())
    done = 0
    try:
        while done < len(memory):
            count = move(fd, [memory[done:]], offset + done)
            if not count:
                return errno.EIO  # the file ends too early
            done += count
    except OSError as error:
        return error.errno
    return 0


def _give_back_freed_memory():
    """Makes the C library return the memory of freed large arrays to the system, if it can."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _OWN_PAGES)


def _close(fd, executors):
    for executor in executors:
        executor.shutdown()
    os.close(fd)
