"""Processes of one batch, as threads: :class:`mixprec.backends.joint_batch.JointBatch` without MPI.

One thread runs at a time, until it exchanges something with the others.
"""

import threading

import numpy as np


class ThreadRanks:
    """What one thread has of the others."""

    def __init__(self, group, rank):
        self._group, self._rank = group, rank
        self.size = group.size

    def statistics(self, primitives, x):
        part = primitives.batch_norm_part(x)
        return np.stack(self._group.exchange(self._rank, part)).view(type(part))

    def sum(self, array):
        return sum(self._group.exchange(self._rank, array))


class _Group:
    def __init__(self, size):
        self.size = size
        self.sent = [None] * size
        self.turn = threading.Lock()
        self._barrier = threading.Barrier(size)

    def exchange(self, rank, array):
        self.sent[rank] = array.copy()
        self._wait()
        found = list(self.sent)
        self._wait()  # before the next one sends
        return found

    def _wait(self):
        self.turn.release()
        try:
            self._barrier.wait(timeout=60)
        finally:
            self.turn.acquire()

    def end(self):
        self._barrier.abort()


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
