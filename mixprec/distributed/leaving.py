"""Detects ranks that have ended: in MPI an ending process waits for all others, and these silently wait for it.

So each process tells all others at its end how many collective operations it has taken part in. Waiting for a rank that
takes part in no more is an error. Operations that a rank has begun and not finished do not count: MPI does not continue
them when the program has ended. Launchers detect ends without a message: ``os._exit`` and signals.
"""

import atexit
import sys

import numpy as np

_TAG = 4321
_all = {}  # identity of a communicator -> its Turns, which outlive the communicator's users
_sent = []  # messages of this process at its end, and their requests


class RankLeft(RuntimeError):
    """This rank waits for a rank whose program has ended."""


class Turns:
    """Counts the collective operations of this rank on a communicator, which are in the same order on all ranks.

    Args:
        comm: ``mpi4py.MPI.Intracomm`` that nothing else uses at this time. All of its ranks start counting together.
    """

    def __init__(self, comm):
        self._comm = comm
        self._left = {}  # ranks that have left -> number of their turns
        self._taken, self._open = 0, set()
        _all[id(comm)] = self

    def take(self):
        """Begins a turn and returns its number, from 1."""
        self._taken += 1
        self._open.add(self._taken)
        return self._taken

    def end(self, turn):
        """Marks a turn as finished on this rank."""
        self._open.discard(turn)

    @property
    def ended(self):
        """Number of turns that are finished together with all turns before them."""
        return min(self._open, default=self._taken + 1) - 1

    def check(self, turn):
        """Checks that no rank has left before a turn.

        Args:
            turn: number of the turn that this rank waits for.

        Raises:
            RankLeft: a rank has left; the message names it.
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
        """Tells all other ranks that this one leaves."""
        taken = np.array([self.ended], np.int64)
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        _sent.append((taken, [self._comm.Isend(taken, rank, _TAG) for rank in others]))


@atexit.register
def _leave():
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized():
        for turns in _all.values():
            turns.leave()
