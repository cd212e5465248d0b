"""What processes whose batches are normalized as one send, by MPI and by NCCL, with stand-ins for both."""

import sys
import types

import numpy as np
import pytest

from mixprec.backends import ranks


class Mpi:
    """MPI's communicator of two processes; the other one sends what this one does, plus 1."""

    def __init__(self):
        self.duplicates = 0

    def Dup(self):
        self.duplicates += 1
        return Duplicate()


class Duplicate:
    def Allgather(self, sent, received):
        received[0], received[1] = sent, sent + 1

    def Allreduce(self, sent, received):
        received[...] = 2 * sent + 1


class Communicator:
    size = 2

    def __init__(self):
        self.mpi_comm = Mpi()


def test_messages_of_a_communicator_go_through_one_duplicate():
    """Those of another one through another; a communicator that has gone leaves none."""
    communicator, other, array = Communicator(), Communicator(), np.arange(3.0)
    before = len(ranks._duplicates)
    for _ in range(2):
        of_normalization = ranks.Ranks(communicator)
        np.testing.assert_array_equal(of_normalization.gather(array), [array, array + 1])
        np.testing.assert_array_equal(of_normalization.sum(array), 2 * array + 1)
    ranks.Ranks(other).sum(array)
    assert communicator.mpi_comm.duplicates == other.mpi_comm.duplicates == 1
    assert len(ranks._duplicates) == before + 2
    del communicator, other, of_normalization
    assert len(ranks._duplicates) == before


def test_statistics_are_gathered_once():
    """One process alone may compute a normalization a second time; sums of gradients are those of each call."""
    of_normalization, array = ranks.Ranks(Communicator()), np.arange(3.0)
    first = of_normalization.gather(array)
    assert of_normalization.gather(array + 5) is first
    assert of_normalization.sum(array + 5)[0] == 11


class DeviceArray(np.ndarray):
    @property
    def data(self):
        return types.SimpleNamespace(ptr=self)


class Nccl:
    def __init__(self):
        self.calls = []

    def allReduce(self, sent, received, count, dtype, operation, stream):
        self.calls.append((count, dtype, operation, stream))
        received[...] = 2 * sent

    def allGather(self, sent, received, count, dtype, stream):
        self.calls.append((count, dtype, stream))
        received[:] = sent


@pytest.fixture
def cupy(monkeypatch):
    empty = lambda shape, dtype: np.empty(shape, dtype).view(DeviceArray)  # noqa: E731
    stream = types.SimpleNamespace(ptr=77)
    stand_in = types.SimpleNamespace(
        empty=empty,
        empty_like=lambda array: empty(array.shape, array.dtype),
        cuda=types.SimpleNamespace(get_current_stream=lambda: stream),
    )
    monkeypatch.setattr(ranks.cuda, "cupy", stand_in, raising=False)
    constants = types.SimpleNamespace(NCCL_FLOAT32="float32", NCCL_SUM="sum")
    monkeypatch.setitem(sys.modules, "chainermn.nccl", constants)
    return stand_in


def test_nccl_sends_on_the_current_stream(cupy):
    """The communicator is ChainerMN's, which is made when it is first needed."""
    communicator = types.SimpleNamespace(size=2, nccl_comm=None)
    communicator._init_comms = lambda: setattr(communicator, "nccl_comm", communicator.nccl_comm or Nccl())
    of_normalization = ranks.NcclRanks(communicator)
    array = np.ones((2, 5), np.float32).view(DeviceArray)
    found = of_normalization.gather(array)
    assert found.shape == (2, 2, 5)
    assert of_normalization.gather(array) is found
    np.testing.assert_array_equal(of_normalization.sum(array), 2 * array)
    assert communicator.nccl_comm.calls == [(10, "float32", 77), (10, "float32", "sum", 77)]
