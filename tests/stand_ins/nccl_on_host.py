"""NCCL for the stand-in of :mod:`tests.stand_ins.graph_on_host`, on its third stream.

Sums are computed when their turn comes on that stream: as late as they may outside of a graph, when the first stream
waits for them, and in each launch of a graph that they were captured in.
"""

import contextlib

import numpy as np

from mixprec.backends import wgrad_stream
from mixprec.backends.device_log import record
from mixprec.backends.nccl import Asked
from tests.stand_ins import graph_work
from tests.stand_ins.graph_array import raw
from tests.stand_ins.rank_threads import added


class HostNccl:
    """Has the interface of :class:`mixprec.backends.nccl.Nccl`.

    Args:
        exchange: callable that takes an array of NumPy, and returns those of all processes, a list. By default there
            is another one that always has the same.

    Attributes:
        calls: ``(name, number of elements, dtype)`` of all that was asked for.
        done: the same of what was done, in that order.
        events: what the third stream has been asked, and the first: ``"fork"``, ``"wait for the second stream"``,
            ``"join"`` and names of calls.
    """

    def __init__(self, exchange=lambda array: [array, array]):
        self._exchange = exchange
        self.asked = Asked()
        self.calls, self.done, self.events = [], [], []
        self._later, self._held = [], []
        self._is_joined = True

    @contextlib.contextmanager
    def beside(self, *held):
        self.events.append("fork")
        graph_work.wait(graph_work.THIRD, graph_work.record(graph_work.FIRST))
        last = wgrad_stream.last()
        if last is not None:
            self.events.append("wait for the second stream")
            graph_work.wait(graph_work.THIRD, last)
        self._held.append(held)
        self._is_joined = False
        with graph_work.on_third_stream(self._later):
            yield

    def join(self):
        if not self._is_joined:
            self.events.append("join")
            graph_work.wait(graph_work.FIRST, graph_work.record(graph_work.THIRD))
            if not graph_work.is_capturing():
                for work in self._later:
                    work()
                self._later.clear()
            self._held.clear()
            self._is_joined = True

    def all_reduce(self, array, found=None):
        self._ask("all_reduce", array, (array if found is None else found), array.ctypes.data)

    def all_gather(self, array, found):
        self._ask("all_gather", array, found, array.ctypes.data)

    def broadcast(self, array):
        self._ask("broadcast", array, array)

    def _ask(self, name, array, found, *addresses):
        self.events.append(name)
        self.calls.append((name, array.size, array.dtype.name))
        record("nccl", name, *addresses, found.ctypes.data, array.size, array.dtype.name)
        graph_work.do(self._do, self.calls[-1], raw(array), raw(found))

    def _do(self, call, array, found):
        of_ranks = self._exchange(array.copy())
        if call[0] == "all_reduce":
            with np.errstate(over="ignore"):
                found[...] = added(of_ranks)
        else:
            found[...] = of_ranks if call[0] == "all_gather" else of_ranks[0]
        self.done.append(call)


class Communicator:
    """One of ChainerMN, of a process whose parameters are on the stand-in device.

    Args:
        ranks: :class:`~tests.stand_ins.rank_threads.ThreadRanks`; ``None`` for rank 0 of two that are the same, whose
            messages go by :mod:`tests.stand_ins.twin_transport`.
    """

    def __init__(self, ranks=None):
        self.mpi_comm = ranks
        self.rank, self.size = (0, 2) if ranks is None else (ranks.rank, ranks.size)
        self.nccl = HostNccl() if ranks is None else HostNccl(lambda array: ranks.exchange(array, "nccl"))
