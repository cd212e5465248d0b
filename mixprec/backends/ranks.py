"""The processes whose batches are normalized as one, and what they send each other.

The rule of :mod:`mixprec.rewrite` makes one of these for a batch normalization of ChainerMN. The primitives call it
between the pass that reads and the pass that writes.
"""

import weakref

import numpy as np
from chainer.backends import cuda

_duplicates = weakref.WeakKeyDictionary()  # of MPI's communicators, by that of ChainerMN


class Ranks:
    """Exchanges small arrays of NumPy for one batch normalization in one step, between all processes.

    Messages go through a duplicate of MPI's communicator, as a thread may be sending gradients through another one at
    the same time. All processes have to make it together: they do so in their first exchange, that is, in the first
    batch normalization of the first step.

    Args:
        communicator: one of ChainerMN.

    Attributes:
        size: number of processes.
    """

    def __init__(self, communicator):
        self._communicator = communicator
        self._gathered = None
        self.size = communicator.size

    def gather(self, array):
        """Returns the arrays of all processes in the order of their ranks, (size, *shape).

        The statistics are gathered once. One process alone may want a result that was fused with a ReLU, to print it,
        and computes it a second time: no other one would answer.
        """
        if self._gathered is None:
            self._gathered = self._gather(array)
        return self._gathered

    def sum(self, array):
        """Returns the sum of the arrays of all processes."""
        found = np.empty_like(array)
        self._mpi().Allreduce(array, found)
        return found

    def _gather(self, array):
        found = np.empty((self.size, *array.shape), array.dtype)
        self._mpi().Allgather(array, found)
        return found

    def _mpi(self):
        found = _duplicates.get(self._communicator)
        if found is None:
            found = _duplicates[self._communicator] = self._communicator.mpi_comm.Dup()
        return found


class NcclRanks(Ranks):
    """Exchanges float32 arrays of CuPy, on the current stream, by the NCCL communicator that ChainerMN has."""

    def sum(self, array):
        """See :meth:`Ranks.sum`."""
        from chainermn.nccl import NCCL_FLOAT32, NCCL_SUM

        found = cuda.cupy.empty_like(array)
        stream = cuda.cupy.cuda.get_current_stream().ptr
        self._nccl().allReduce(array.data.ptr, found.data.ptr, array.size, NCCL_FLOAT32, NCCL_SUM, stream)
        return found

    def _gather(self, array):
        from chainermn.nccl import NCCL_FLOAT32

        found = cuda.cupy.empty((self.size, *array.shape), array.dtype)
        stream = cuda.cupy.cuda.get_current_stream().ptr
        self._nccl().allGather(array.data.ptr, found.data.ptr, array.size, NCCL_FLOAT32, stream)
        return found

    def _nccl(self):
        self._communicator._init_comms()
        return self._communicator.nccl_comm
