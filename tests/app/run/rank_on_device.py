"""``faulty_rank.py`` on the stand-in for CuPy: each rank has a GPU for itself, and NCCL is MPI.

The first argument is the address of the GPU, ``own`` for one that no other rank has.
"""

import contextlib
import sys

from tests.stand_ins import fake_cupy

fake_cupy.install()

import cupy  # noqa: E402
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from mixprec import backends  # noqa: E402
from mixprec.backends import transfers  # noqa: E402
from mixprec.backends.nccl import Asked  # noqa: E402
from tests.app.run import faulty_rank  # noqa: E402
from tests.stand_ins.device_stand_in import DeviceArray  # noqa: E402


class Nccl:
    """In the place of :class:`mixprec.backends.nccl.Nccl`."""

    def __init__(self, comm):
        self._comm, self.asked = comm.Dup(), Asked()

    @contextlib.contextmanager
    def beside(self, *held):
        yield

    def join(self):
        pass

    def all_reduce(self, array, found=None):
        assert isinstance(array, DeviceArray)
        target = np.asarray(array if found is None else found).view(np.ndarray)
        target[...] = sum(self._comm.allgather(np.array(array.view(np.ndarray), np.float32)))

    def broadcast(self, array):
        assert isinstance(array, DeviceArray)
        array.view(np.ndarray)[...] = self._comm.bcast(array.view(np.ndarray))


def main(address, *arguments):
    own = f"0000:{MPI.COMM_WORLD.rank:02}:00.0"
    cupy.cuda.runtime.deviceGetPCIBusId = lambda device: own if address == "own" else address
    transfers._Copied = lambda array: transfers.HostCopy(array.view(np.ndarray))  # there is no pinned memory
    nccl = Nccl(MPI.COMM_WORLD)
    backends.primitives_of(cupy.zeros(1)).nccl_of = lambda communicator: nccl
    return faulty_rank.main(*arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
