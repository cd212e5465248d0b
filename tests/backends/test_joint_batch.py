"""What processes whose batches are normalized as one send, by MPI and by NCCL, with stand-ins for both."""

import sys
import types

import numpy as np
import pytest

from mixprec.backends import cpu, joint_batch


class Mpi:
    """MPI's communicator of two processes; the other one sends what this one does, unless it is at another place."""

    def __init__(self):
        self.duplicates = []

    def Dup(self):
        self.duplicates.append(Duplicate())
        return self.duplicates[-1]


class Duplicate:
    elsewhere = False

    def Allgather(self, sent, received):
        received[:] = sent
        if self.elsewhere:
            received[1] += 1

    def allgather(self, value):
        return [value, "the gradient of /bn2 (8,)"]


class Communicator:
    size = 2

    def __init__(self):
        self.mpi_comm = Mpi()


class Primitives:
    """Counts how often statistics are taken."""

    taken = 0

    def batch_norm_part(self, x):
        self.taken += 1
        return x + self.taken


PART = np.arange(6.0).reshape(3, 2) + 1


def test_messages_of_a_communicator_go_through_one_duplicate():
    """Those of another one through another."""
    communicator, other = Communicator(), Communicator()
    for _ in range(2):
        of_normalization = joint_batch.JointBatch(communicator, "/bn")
        np.testing.assert_array_equal(of_normalization.statistics(Primitives(), PART), 2 * [PART + 1])
        np.testing.assert_array_equal(of_normalization.sum(PART[:2]), 2 * PART[:2])
    joint_batch.JointBatch(other, "/bn").sum(PART)
    assert len(communicator.mpi_comm.duplicates) == len(other.mpi_comm.duplicates) == 1


def test_statistics_are_sent_once():
    """One process alone may compute a normalization a second time; sums of gradients are those of each call."""
    of_normalization, primitives = joint_batch.JointBatch(Communicator(), "/bn"), Primitives()
    first = of_normalization.statistics(primitives, PART)
    assert of_normalization.statistics(primitives, PART) is first
    assert primitives.taken == 1
    np.testing.assert_array_equal(of_normalization.sum(PART + 5), 2 * (PART + 5))


def test_processes_at_two_places_are_an_error():
    """MPI would put together the gradients of two batch normalizations."""
    communicator = Communicator()
    of_normalization = joint_batch.JointBatch(communicator, "/bn1")
    of_normalization.statistics(Primitives(), PART)
    communicator.mpi_comm.duplicates[0].elsewhere = True
    with pytest.raises(RuntimeError, match=r"process 0 at the gradient of /bn1 \(2,\), process 1 .* of /bn2 \(8,\)"):
        of_normalization.sum(PART[:2])


def test_an_empty_batch_of_one_process_is_an_error_of_all():
    class Empty(Duplicate):
        def Allgather(self, sent, received):
            received[:] = sent
            if received.ndim == 3:
                received[1] = cpu.PRIMITIVES.batch_norm_part(np.empty((0, 2), np.float32))

    communicator = Communicator()
    communicator.mpi_comm.Dup = Empty
    with pytest.raises(ValueError, match="/bn: an empty batch has no statistics; found one in process 1"):
        joint_batch.JointBatch(communicator, "/bn").statistics(Primitives(), PART)


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
    monkeypatch.setattr(joint_batch.cuda, "cupy", stand_in, raising=False)
    constants = types.SimpleNamespace(NCCL_FLOAT32="float32", NCCL_SUM="sum")
    monkeypatch.setitem(sys.modules, "chainermn.nccl", constants)
    return stand_in


def test_nccl_sends_on_the_current_stream(cupy):
    """The communicator is ChainerMN's, which is made when it is first needed."""
    communicator = types.SimpleNamespace(size=2, nccl_comm=None)
    communicator._init_comms = lambda: setattr(communicator, "nccl_comm", communicator.nccl_comm or Nccl())
    of_normalization, primitives = joint_batch.NcclJointBatch(communicator, "/bn"), Primitives()
    array = np.ones((2, 5), np.float32).view(DeviceArray)
    found = of_normalization.statistics(primitives, array)
    assert found.shape == (2, 2, 5)
    assert of_normalization.statistics(primitives, array) is found
    np.testing.assert_array_equal(of_normalization.sum(array), 2 * array)
    assert communicator.nccl_comm.calls == [(10, "float32", 77), (10, "float32", "sum", 77)]
