"""What processes whose batches are normalized as one send, by MPI and by NCCL, with stand-ins for both."""

import contextlib
import types

import numpy as np
import pytest

from mixprec import backends
from mixprec.backends import cpu, joint_batch
from mixprec.backends.nccl import Asked


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


class Nccl:
    """NCCL of two processes; the other one sends what this one does."""

    def __init__(self):
        self.asked, self.calls = Asked(), []

    @contextlib.contextmanager
    def beside(self, *held):
        self.calls.append(len(held))
        yield

    def join(self):
        self.calls.append("join")

    def all_reduce(self, array, found):
        found[...] = 2 * array

    def all_gather(self, array, found):
        found[...] = array


@pytest.fixture
def device(monkeypatch):
    launcher = types.SimpleNamespace(empty=lambda shape, dtype: np.empty(shape, dtype).view(DeviceArray))
    primitives = types.SimpleNamespace(launcher=launcher, nccl_of=lambda communicator: communicator.nccl)
    monkeypatch.setitem(backends._OTHERS, DeviceArray, primitives)
    return np.ones((2, 5), np.float32).view(DeviceArray)


class DeviceArray(np.ndarray):
    pass


def test_nccl_sends_beside_the_current_stream_which_waits(device):
    """What is sent is held until then. The sums have their order with all others of the communicator."""
    communicator = types.SimpleNamespace(size=2, rank=0, nccl=Nccl())
    of_normalization, primitives = joint_batch.NcclJointBatch(communicator, "/bn"), Primitives()
    found = of_normalization.statistics(primitives, device)
    assert found.shape == (2, 2, 5)
    assert of_normalization.statistics(primitives, device) is found
    np.testing.assert_array_equal(of_normalization.sum(device), 2 * device)
    assert communicator.nccl.calls == [2, "join"] * 2
    assert communicator.nccl.asked.taken() == ["the statistics of /bn (5,)", "the gradient of /bn (5,)"]
    assert not communicator.nccl.asked.taken()


def test_an_empty_batch_is_another_place_for_nccl(device):
    """The optimizer compares places before it updates: an error on all."""
    communicator = types.SimpleNamespace(size=2, rank=1, nccl=Nccl())
    joint_batch.NcclJointBatch(communicator, "/bn").statistics(Primitives(), device[:0])
    assert communicator.nccl.asked.taken() == ["the statistics of /bn (5,), of an empty batch in process 1"]
    communicator.size = 1
    with pytest.raises(ValueError, match="/bn: an empty batch has no statistics"):
        joint_batch.NcclJointBatch(communicator, "/bn").statistics(Primitives(), device[:0])
