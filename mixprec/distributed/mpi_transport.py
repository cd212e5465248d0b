"""Arrays of NumPy over MPI, while the process computes.

MPI libraries work on a collective operation only while the program calls them. A thread does that: it posts what
:meth:`MpiTransport.start` is given, and asks MPI for the state of it, with pauses, so that the computation has the
processor. ``MixedPrecisionOptimizer.setup`` makes a transport. All transports of one communicator share the thread, so
that their sums are posted in one order. It starts with the first sum, so that processes forked before have no copy of
it, and ends with the last transport.
"""

import ctypes
import functools
import queue
import threading
import time
import weakref

import numpy as np

from mixprec.backends.mpi_duplicates import duplicate
from mixprec.distributed.transport import Transport, Work
from mixprec.dtypes import is_half

# Seconds between two questions. Each takes processor time from the computation: they get rarer while nothing happens,
# as when other ranks are late.
SHORTEST, LONGEST = 5e-5, 1e-3


class MpiTransport(Transport):
    """MPI on duplicates of a communicator: one for sums, which a thread posts, and one for the rest.

    Args:
        mpi_comm: ``mpi4py.MPI.Intracomm``. All of its ranks make a transport at the same time.

    Raises:
        RuntimeError: MPI does not let several threads call it.
    """

    def __init__(self, mpi_comm):
        from mpi4py import MPI

        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            raise RuntimeError(
                "gradients are sent by a thread, which needs MPI_THREAD_MULTIPLE: leave mpi4py.rc.thread_level as it is"
            )
        self._comm = duplicate(mpi_comm, "gradients")
        self.rank, self.size = self._comm.rank, self._comm.size
        sums = duplicate(mpi_comm, "sums of gradients")
        self._line = _lines.get(id(sums)) or _lines.setdefault(id(sums), _Line(sums))

    def start(self, array):
        """See :meth:`~mixprec.distributed.transport.Transport.start`."""
        return self._line.start(array)

    def broadcast(self, array):
        """See :meth:`~mixprec.distributed.transport.Transport.broadcast`."""
        self._comm.Bcast(array.reshape(-1).view(np.uint8), root=0)

    def gather(self, value):
        """See :meth:`~mixprec.distributed.transport.Transport.gather`."""
        return self._comm.allgather(value)


class _Line:
    """The sums on one communicator, and their thread."""

    def __init__(self, comm):
        self._comm = comm
        self._posted = None

    def start(self, array):
        if self._posted is None:
            self._posted = queue.SimpleQueue()
            thread = threading.Thread(target=_progress, args=(self._comm, self._posted), daemon=True)
            thread.start()
            weakref.finalize(self, _end, thread, self._posted)  # at exit as well, before MPI ends
        work = _Sum(array)
        self._posted.put(work)
        return work


_lines = weakref.WeakValueDictionary()  # by the identity of the duplicate, which is kept for ever


class _Sum(Work):
    def __init__(self, array):
        self.array = array
        self.request = self.error = None
        self._there = threading.Event()

    @property
    def done(self):
        return self._there.is_set()

    def end(self, error=None):
        """Called by the thread."""
        self.error = error
        self._there.set()

    def join(self):
        self._there.wait()
        if self.error is not None:
            raise RuntimeError(f"the sum of gradients over MPI failed: {self.error}") from self.error


def _progress(comm, posted):
    """Works on sums in the order in which they come, until there comes a ``None``."""
    under_way, pause = [], SHORTEST
    while True:
        try:
            while not under_way or not posted.empty():
                work = posted.get()
                if work is None:
                    _leave(under_way)
                    return
                under_way.append(work)
                work.request, pause = _post(comm, work.array), SHORTEST
            left = [work for work in under_way if not work.request.Test()]
        except Exception as error:  # for the thread that joins; MPI does not say of which sum it is
            _leave(under_way)
            for work in under_way:
                work.end(error)
            under_way = []
            continue
        for work in set(under_way).difference(left):
            work.end()
        if len(left) == len(under_way):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        else:
            under_way, pause = left, SHORTEST


def _end(thread, posted):
    posted.put(None)
    if thread is not threading.current_thread():  # in which garbage may be collected
        thread.join(1)


def _leave(sums):
    """Keeps the arrays of sums that are under way to the end of the process: MPI may still write into them."""
    for work in sums:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))


def _post(comm, array):
    from mpi4py import MPI

    if is_half(array.dtype):
        return comm.Iallreduce(MPI.IN_PLACE, array.view(np.int16), op=_half_sum(array.dtype))
    return comm.Iallreduce(MPI.IN_PLACE, array, op=MPI.SUM)


@functools.cache
def _half_sum(dtype):
    """Returns the operation that adds numbers of a half dtype, which MPI takes for integers, in float32."""
    from mpi4py import MPI

    def add(some, others, _):
        some, others = (np.frombuffer(memory, np.int16).view(dtype) for memory in (some, others))
        with np.errstate(all="ignore"):
            others[...] = some.astype(np.float32) + others.astype(np.float32)

    return MPI.Op.Create(add, commute=True)
