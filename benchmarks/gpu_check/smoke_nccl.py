"""NCCL with one process, as one GPU is all that there is: its calls, alone and in a graph, and what optimizers need.

:mod:`benchmarks.gpu_check.smoke` calls it. MPI is not there: objects of this module are in its place.
"""

import contextlib
from unittest import mock

import numpy as np

from mixprec.backends.nccl import nccl_of
from mixprec.distributed.transport import Transport, Work
from mixprec.graph_capture.cuda_graphs import graphs_of
from mixprec.optimizer import ranks

_SIZE = 100_003
_LAUNCHES = 3


class Alone:
    """ChainerMN's communicator, and MPI's, of one process."""

    rank, size = 0, 1

    @property
    def mpi_comm(self):
        """The same."""
        return self

    def bcast(self, value):
        """Returns the value."""
        return value

    def allgather(self, value):
        """Returns a list of it."""
        return [value]


class _OfHost(Transport):
    """In the place of MPI: nothing is added to an array of the host."""

    rank, size = 0, 1

    def start(self, array):
        return _There()

    def broadcast(self, array):
        pass

    def gather(self, value):
        return [value]


class _There(Work):
    done = True

    def join(self):
        pass


@contextlib.contextmanager
def without_mpi():
    """Inside of the block optimizers with an :class:`Alone` are set up without MPI."""
    with mock.patch.object(ranks, "MpiTransport", return_value=_OfHost()):
        yield


def calls(xp, communicator):
    """Adds up and gathers arrays, at once and in the launches of a graph; returns how many launches were right.

    Args:
        xp: CuPy.
        communicator: :class:`Alone`.

    Raises:
        AssertionError: a result is wrong.
    """
    for dtype in (np.float16, np.float32):
        start = (np.arange(_SIZE) % 1000).astype(dtype)
        summed, gathered = xp.asarray(start), xp.asarray(np.zeros((1, _SIZE), dtype))
        nccl = nccl_of(communicator, summed)
        one = xp.asarray(np.ones((), dtype))

        def work(summed=summed, gathered=gathered, one=one, nccl=nccl):
            summed += one  # before and behind NCCL's stream, on the first one
            with nccl.beside(summed, gathered):
                nccl.all_reduce(summed)
                nccl.all_gather(summed, gathered)
            nccl.join()
            summed += one

        work()
        _check("a call", start, 2, summed, gathered)
        graphs = graphs_of(summed)
        with graphs.on_stream():
            graph, _ = graphs.capture(work)
            _check("a capture, which computes nothing,", start, 2, summed, gathered)
            for launch in range(_LAUNCHES):
                graph.launch()
                _check(f"launch {launch} of a graph", start, 4 + 2 * launch, summed, gathered)
    return 2 * _LAUNCHES


def _check(what, start, added, summed, gathered):
    for name, array, expected in (("sum", summed, start + added), ("gathered", gathered[0], start + added - 1)):
        wrong = int((_received(array) != expected.astype(start.dtype)).sum())
        if wrong:
            raise AssertionError(f"{what}: {wrong} of {start.size} numbers in {start.dtype} are wrong, {name}")


def _received(array):
    return array.get() if hasattr(array, "get") else np.asarray(array)
