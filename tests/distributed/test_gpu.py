"""One process with NCCL, as ``pytest -m gpu`` runs it where there is a GPU; elsewhere on the stand-in for a device."""

import pytest

from mixprec.optimizer import ranks
from tests.graph_capture.captured_runs import FIRST_REPLAY, REQUIRED, Run, assert_same
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides
from tests.stand_ins.nccl_on_host import HostNccl
from tests.stand_ins.twin_transport import Twins

STEPS = range(7, 11)  # one of them overflows


class Alone:
    """A communicator of ChainerMN with one process, without MPI."""

    rank, size = 0, 1

    def __init__(self):
        self.mpi_comm = self
        self.nccl = HostNccl(lambda array: [array])  # of the stand-in

    def bcast(self, value):
        return value

    def allgather(self, value):
        return [value]


@pytest.fixture
def alone(monkeypatch):
    twins = Twins()
    twins.size, twins.other = 1, lambda array: 0 * array
    monkeypatch.setattr(ranks, "MpiTransport", lambda mpi_comm: twins)
    return Alone()


@both_sides
@pytest.mark.slow
def test_a_process_alone_with_nccl_trains_as_without(side, alone):  # noqa: F811
    pytest.importorskip("cupy.cuda.nccl") if side.is_gpu else None
    run = Run(None, side=side, communicator=alone, allreduce_dtype="float32").run(STEPS)
    assert run.optimizer.skipped
    assert_same(run, Run(None, side=side).run(STEPS))


@both_sides
@pytest.mark.slow
def test_captured_steps_of_a_process_alone_with_nccl(side, alone):  # noqa: F811
    pytest.importorskip("cupy.cuda.nccl") if side.is_gpu else None
    run = Run(REQUIRED, side=side, communicator=alone).run(range(12))
    assert run.step.replays == 12 - FIRST_REPLAY
    assert run.optimizer.skipped
    assert_same(run, Run(None, side=side).run(range(12)))
