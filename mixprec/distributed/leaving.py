"""Ranks that have left: in MPI a process that ends waits for all others, and they wait for it without a word.

So each process tells all others at its end how often it has taken part in what they do together. Where one waits for a
rank that takes part no more, that is an error. What a rank has begun and not ended does not count: MPI does not go on
with it when the program has ended. Launchers see for themselves what ends without a message: ``os._exit``
and signals.
"""

import atexit
import sys

import numpy as np

_TAG = 4321
_all = {}  # identity of a communicator -> its Turns, which outlive what they count for
_sent = []  # messages of this process at its end, and their requests


class RankLeft(RuntimeError):
    """This rank waits for one whose program has ended."""


class Turns:
    """How often this rank has taken part in what all ranks of a communicator do, in the same order.

    Args:
        comm: ``mpi4py.MPI.Intracomm`` that nothing else uses at this time. All of its ranks begin to count together.
    """

    def __init__(self, comm):
        self._comm = comm
        self._left = {}  # ranks that have left, and how many turns they took
        self._taken, self._open = 0, set()
        _all[id(comm)] = self

    def take(self):
        """Returns the number of the turn that begins, from 1 on."""
        self._taken += 1
        self._open.add(self._taken)
        return self._taken

    def end(self, turn):
        """Notes that a turn is over on this rank."""
        self._open.discard(turn)

    @property
    def ended(self):
        """How many turns are over, with all before them."""
        return min(self._open, default=self._taken + 1) - 1

    def check(self, turn):
        """Makes sure that no rank has left before that turn.

        Args:
            turn: number of what this rank waits for.

        Raises:
            RankLeft: one has; it is named.
        """
        from mpi4py import MPI

        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            taken = np.empty(1, np.int64)
            self._comm.Recv(taken, status.Get_source(), _TAG)
            self._left[status.Get_source()] = taken[0]
        for rank, taken in sorted(self._left.items()):
            if taken < turn:
                raise RankLeft(
                    f"rank {rank} has left: its program has ended, and this rank waits for it in update() or setup(): "
                    "all ranks must call these equally often"
                )

    def leave(self):
        """Tells all other ranks."""
        taken = np.array([self.ended], np.int64)
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        _sent.append((taken, [self._comm.Isend(taken, rank, _TAG) for rank in others]))


@atexit.register
def _leave():
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized():
        for turns in _all.values():
            turns.leave()
