"""The processes whose batches are normalized as one, and their messages.

The rule of :mod:`mixprec.rewrite` makes one of these for a batch normalization of ChainerMN, and sends its statistics.
The primitives take these, and send the sums of the backward pass.
"""

import itertools
import weakref
import zlib

import numpy as np

from mixprec.backends import primitives_of
from mixprec.backends.mpi_duplicates import duplicate
from mixprec.backends.nccl import nccl_of

_turns = weakref.WeakKeyDictionary()  # a count for each of ChainerMN's communicators


class JointBatch:
    """Exchanges small arrays of NumPy for one batch normalization in one step, between all processes.

    Messages go through a separate duplicate of MPI's communicator, as processes may start sums of gradients at
    different points of the step. All processes have to make it together: they do so in their first exchange, that is,
    in the first batch normalization of the first step.

    Args:
        communicator: communicator of ChainerMN.
        name: name of the link, for messages.

    Attributes:
        size: number of processes.
    """

    def __init__(self, communicator, name):
        self._communicator = communicator
        self._name = name
        self._turn = None
        self._gathered = None
        self.size = communicator.size

    def statistics(self, primitives, x):
        """Returns ``primitives.batch_norm_part(x)`` of all processes in the order of their ranks, (size, 3, C).

        They are sent once. If a single process needs a result that was fused with a ReLU, for example to print it, it
        computes it a second time, and no other process would answer.

        Raises:
            RuntimeError: another process is at another batch normalization.
            ValueError: a process has an empty batch; all of them raise it.
        """
        if self._gathered is None:
            self._gathered = self._gather(primitives.batch_norm_part(x), x.size == 0)
        return self._gathered

    def sum(self, array):
        """Returns the sum of the arrays of all processes, the same bits in all of them.

        Raises:
            RuntimeError: as for :meth:`statistics`.
        """
        return self._exchange("the gradient", array).sum(axis=0)

    def _gather(self, array, is_empty):
        self._turn = next(_turns.setdefault(self._communicator, itertools.count()))
        found = self._exchange("the statistics", array)
        empty = [rank for rank, counts in enumerate(found[:, 0]) if not counts.all()]
        if empty:
            raise ValueError(f"{self._name}: an empty batch has no statistics; found one in process {empty[0]}")
        return found

    def _exchange(self, what, array):
        mpi = duplicate(self._communicator.mpi_comm, "batch normalization")
        self._compare(mpi, f"{what} of {self._name} {array.shape[1:]}")
        found = np.empty((self.size, *array.shape), array.dtype)
        mpi.Allgather(array, found)
        return found

    def _compare(self, mpi, place):
        """Checks that all processes are at the same point, as MPI would also combine unrelated messages."""
        mine, all_of_them = np.array([zlib.crc32(f"{place}, {self._turn}".encode())]), np.empty(self.size, np.int64)
        mpi.Allgather(mine, all_of_them)
        if (all_of_them != mine).any():
            places = ", ".join(f"process {rank} at {each}" for rank, each in enumerate(mpi.allgather(place)))
            raise RuntimeError(
                f"batch normalizations over several processes are not computed in the same order: {places}. If only "
                f"one process reads results or has function hooks, let all do so, or use convert(fuse=False)"
            )


class NcclJointBatch(JointBatch):
    """Exchanges float32 arrays of a device, in one order with sums of gradients, by :mod:`~mixprec.backends.nccl`.

    Processes do not compare their positions here, as the host would have to wait. An optimizer of mixprec with a
    communicator compares them at the end of the step, together with empty batches, before it updates.
    """

    def sum(self, array):
        """See :meth:`JointBatch.sum`."""
        return self._asked(f"the gradient of {self._name} {array.shape[1:]}", "all_reduce", array, array.shape)

    def _gather(self, array, is_empty):
        place = f"the statistics of {self._name} {array.shape[1:]}"
        if is_empty and self.size == 1:
            raise ValueError(f"{self._name}: an empty batch has no statistics")
        if is_empty:
            place += f", of an empty batch in process {self._communicator.rank}"
        return self._asked(place, "all_gather", array, (self.size, *array.shape))

    def _asked(self, place, name, array, shape):
        found = primitives_of(array).launcher.empty(shape, array.dtype)
        nccl = nccl_of(self._communicator, array)
        nccl.asked.add(place)
        with nccl.beside(array, found):
            getattr(nccl, name)(array, found)
        nccl.join()
        return found
