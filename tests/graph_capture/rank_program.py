"""A program of several processes with MPI: captured steps on the stand-in device, beside eager ones.

``test_several_ranks.py`` runs it under ``mpiexec``.
"""

import sys

from mpi4py import MPI

from mixprec import backends
from mixprec.backends.cudnn import settings
from mixprec.distributed import buckets
from tests.graph_capture.captured_runs import Run
from tests.graph_capture.test_odd import Small, batch
from tests.stand_ins.graph_array import GraphArray
from tests.stand_ins.graph_on_host import GraphCuda
from tests.stand_ins.nccl_on_host import Communicator, HostNccl

WORLD = MPI.COMM_WORLD


class OfMpi(Communicator):
    """One whose NCCL is MPI, too."""

    def __init__(self):
        self.mpi_comm, self.rank, self.size = WORLD, WORLD.rank, WORLD.size
        self.nccl = HostNccl(WORLD.Dup().allgather)


def trained(capture, steps):
    """Returns a run; a step overflows on rank 0, and one on rank 1."""
    run = Run(capture, network=Small, communicator=OfMpi())
    for number in range(steps):
        run.once(*batch(2 * number + WORLD.rank, bad=(number, WORLD.rank) in {(2, 0), (8, 1)}))
    return run


def main(steps=12):
    """Prints for each rank how many steps were launched, and what an update in the place of a step leads to."""
    device = GraphCuda()
    backends.register(GraphArray, device)
    sys.modules["mixprec.backends.dropout_state"]._primitives = lambda _: device
    settings.configure(deterministic=WORLD.rank == 0, cache=None)  # the stand-in gives the same bits anyway
    buckets.MOST = 2**10
    with device.graphs.on_stream():
        captured, eager = trained({"required": True}, steps), trained(None, steps)
        expected = eager.results()
        same = all(value.tobytes() == expected[name].tobytes() for name, value in captured.results().items())
        try:
            step = captured.step if WORLD.rank else lambda *parts: captured.optimizer.update(captured.model, *parts)
            step(*batch(0))
        except RuntimeError as error:
            sys.stdout.write(f"{WORLD.rank}: {captured.step.replays} launches, same: {same}, {error}\n")
