"""NumPy arrays over MPI, while the process computes.

MPI libraries advance a collective operation only while the program calls them. :meth:`MpiTransport.progress` does so:
the backward pass calls it at each gradient. A separate thread would take the processor and the interpreter from the
computation; measured on two cores, that costs more than it hides. :class:`~mixprec.optimizer.ranks.Ranks` makes a
transport in ``MixedPrecisionOptimizer.setup``.
"""

import ctypes
import functools
import time
import weakref

import numpy as np

from mixprec.backends.mpi_duplicates import lend
from mixprec.base.dtypes import is_half
from mixprec.distributed.leaving import Turns
from mixprec.distributed.transport import Transport, Work

# Polling interval of a waiting process in seconds: a late rank may need the processor.
SHORTEST, LONGEST = 2e-5, 1e-3


class MpiTransport(Transport):
    """MPI on a communicator that no other transport uses at the same time.

    If a step fails, some ranks may have started more sums than others. These sums never match sums of other transports.

    Args:
        mpi_comm: ``mpi4py.MPI.Intracomm``. All of its ranks must make a transport at the same time.
    """

    def __init__(self, mpi_comm):
        self._comm, give_back = lend(mpi_comm)
        self.rank, self.size = self._comm.rank, self._comm.size
        self._turns = Turns(self._comm)
        self._under_way = []
        weakref.finalize(self, _leave, self._under_way, give_back)

    def start(self, array):
        """See :meth:`~mixprec.distributed.transport.Transport.start`."""
        self.progress()  # removes finished sums, also without a backward pass
        work = _Sum(self._turns, self._comm, array)
        self._under_way.append(work)
        return work

    def progress(self):
        """See :meth:`~mixprec.distributed.transport.Transport.progress`."""
        while self._under_way and self._under_way[0].done:  # testing one sum advances all
            del self._under_way[0]

    def broadcast(self, array):
        """See :meth:`~mixprec.distributed.transport.Transport.broadcast`."""
        self._meet()
        self._comm.Bcast(array.reshape(-1).view(np.uint8), root=0)

    def gather(self, value):
        """See :meth:`~mixprec.distributed.transport.Transport.gather`."""
        self._meet()
        return self._comm.allgather(value)

    def _meet(self):
        """Waits for all ranks, as the following operation does not check whether one has left."""
        work, soon = _Request(self._turns, self._comm.Ibarrier()), time.perf_counter() + LONGEST
        while not work.done and time.perf_counter() < soon:
            pass  # busy waiting, as in MPI itself
        work.join()


class _Request(Work):
    def __init__(self, turns, request):
        self._turns, self._turn = turns, turns.take()
        self._request = request  # None when done

    @property
    def done(self):
        if self._request is not None and self._request.Test():
            self._request = None
            self._turns.end(self._turn)
        return self._request is None

    def join(self):
        pause = SHORTEST
        while not self.done:
            if pause == LONGEST:
                self._turns.check(self._turn)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)


class _Sum(_Request):
    def __init__(self, turns, comm, array):
        super().__init__(turns, _post(comm, array))
        self._array = array  # mpi4py does not hold it for a sum in place


def _leave(sums, give_back):
    """Frees the communicator, or keeps running sums until the process ends, as MPI may write into their arrays."""
    left = [work for work in sums if not work.done]
    for work in left:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))
    if not left:
        give_back()


def _post(comm, array):
    from mpi4py import MPI

    if is_half(array.dtype):
        return comm.Iallreduce(MPI.IN_PLACE, array.view(np.int16), op=_half_sum(array.dtype))
    return comm.Iallreduce(MPI.IN_PLACE, array, op=MPI.SUM)


@functools.cache
def _half_sum(dtype):
    """Returns the operation that adds numbers of a 16-bit dtype, which MPI treats as integers, in float32."""
    from mpi4py import MPI

    def add(some, others, _):
        some, others = (np.frombuffer(memory, np.int16).view(dtype) for memory in (some, others))
        with np.errstate(all="ignore"):
            others[...] = some.astype(np.float32) + others.astype(np.float32)

    return MPI.Op.Create(add, commute=True)
