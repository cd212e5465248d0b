"""Processes as threads: :class:`mixprec.backends.joint_batch.JointBatch` and transports without MPI.

One thread runs at a time, until it exchanges something with the others.
"""

import collections
import copy
import threading

import numpy as np

from mixprec.distributed.transport import Transport, Work


class ThreadRanks:
    """What one thread has of the others."""

    def __init__(self, group, rank):
        self._group, self.rank = group, rank
        self.size = group.size

    def exchange(self, value, channel):
        """Returns the values of all threads; those of a channel have to come in one order."""
        return self._group.exchange(self.rank, value, channel)

    def statistics(self, primitives, x):
        part = primitives.batch_norm_part(x)
        return np.stack(self.exchange(part, "statistics")).view(type(part))

    def sum(self, array):
        return sum(self.exchange(array, "sums"))


class ThreadTransport(Transport):
    """In place of :class:`~mixprec.distributed.mpi_transport.MpiTransport`: sums are computed when they are joined.

    Args:
        ranks: :class:`ThreadRanks`.
    """

    def __init__(self, ranks):
        self.ranks = ranks
        self.rank, self.size = ranks.rank, ranks.size
        self.posted = collections.deque()

    def start(self, array):
        self.posted.append(_Sum(self, array))
        return self.posted[-1]

    def broadcast(self, array):
        array[...] = self.ranks.exchange(array, "broadcasts")[0]

    def gather(self, value):
        return self.ranks.exchange(value, "objects")


class _Sum(Work):
    done = False

    def __init__(self, transport, array):
        self._transport, self._array = transport, array

    def join(self):
        while not self.done:
            first = self._transport.posted.popleft()
            first._array[...] = added(self._transport.ranks.exchange(first._array, "messages"))
            first.done = True


def added(arrays):
    """Returns the sum of arrays, of 16 bits in float32."""
    with np.errstate(all="ignore"):
        return sum(array.astype(np.result_type(array.dtype, np.float32)) for array in arrays)


class _Group:
    def __init__(self, size):
        self.size = size
        self.sent = collections.defaultdict(lambda: [None] * size)
        self.turn = threading.Lock()
        self._barriers = collections.defaultdict(lambda: threading.Barrier(size))

    def exchange(self, rank, value, channel):
        self.sent[channel][rank] = copy.copy(value)
        self._wait(self._barriers[channel])
        found = list(self.sent[channel])
        self._wait(self._barriers[channel])  # before the next one sends
        return found

    def _wait(self, barrier):
        self.turn.release()
        try:
            barrier.wait(timeout=60)
        finally:
            self.turn.acquire()

    def end(self):
        for barrier in self._barriers.values():
            barrier.abort()


def run(size, function):
    """Returns what ``function(rank, ranks)`` has returned in each of ``size`` threads, a list."""
    group, found, errors = _Group(size), [None] * size, []

    def body(rank):
        with group.turn:
            try:
                found[rank] = function(rank, ThreadRanks(group, rank))
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                group.end()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found
