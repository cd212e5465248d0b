"""NCCL among the processes of a communicator of ChainerMN, on its own stream.

Sums of gradients (:mod:`mixprec.distributed`) and statistics of batch normalizations over several processes
(:mod:`~mixprec.backends.joint_batch`) share one :class:`Nccl`. NCCL pairs requests of processes in their order; with
two communicators, or two streams, two processes could wait for each other.

The host never waits. The stream of NCCL waits for all earlier work of the current stream, which continues after
:meth:`Nccl.join`.
"""

import contextlib
import ctypes
import os
import platform
import weakref

from mixprec.backends import registered, wgrad_stream
from mixprec.backends.device_log import record

ANOTHER_COMMUNICATOR = "make another communicator, of a duplicate of MPI's, and an optimizer with it"
_of_communicators = {}  # by the identity of MPI's communicators, as long as there are these; they have no hash


def nccl_of(communicator, array):
    """Returns the :class:`Nccl` of a communicator, always the same one; all processes ask for it at the same time.

    Communicators of ChainerMN over one communicator of MPI share it, for example the optimizer's and one that a network
    made. For a stand-in array, the attribute ``nccl_of`` of its registered primitives returns it
    (:func:`mixprec.backends.register`).

    Args:
        communicator: communicator of ChainerMN, or any object with its attribute ``mpi_comm``.
        array: array on the device of this process.

    Raises:
        ValueError: it was made for another device.
    """
    stand_in = registered(array)
    if stand_in is not None:
        return stand_in.nccl_of(communicator)
    of_mpi = communicator.mpi_comm
    found = _of_communicators.get(id(of_mpi))
    if found is None:
        found = _of_communicators[id(of_mpi)] = Nccl(of_mpi, array.device.id)
        weakref.finalize(of_mpi, _of_communicators.pop, id(of_mpi)).atexit = False
    elif found.device != array.device.id:
        raise ValueError(f"NCCL is on GPU {found.device}, arrays on GPU {array.device.id}: {ANOTHER_COMMUNICATOR}")
    return found


class Asked:
    """The requests of a process to NCCL, for the message if another process has made different ones."""

    def __init__(self):
        self._places = []

    def add(self, place):
        """Notes a short text with the request and the line of the model."""
        if len(self._places) < MOST:
            self._places.append(place)

    def taken(self):
        """Returns all texts since the last call, a list in their order; at most ``MOST``."""
        places, self._places = self._places, []
        return places


MOST = 10_000  # texts that are noted: without an optimizer of mixprec nothing reads them


class Nccl:
    """One communicator of NCCL, and one stream.

    Args:
        mpi_comm: ``mpi4py.MPI.Intracomm``, by which processes find each other.
        device: number of the CUDA device of this process.

    Attributes:
        device: the same.
        asked: :class:`Asked`.

    Raises:
        RuntimeError: CuPy has no NCCL in one of the processes, or two have the same GPU; raised in all of them, naming
            the first.
    """

    def __init__(self, mpi_comm, device):
        import cupy  # not at the top: mixprec runs without it

        library, unique = _library(mpi_comm)
        self.device = device
        self._cuda, self._device = cupy.cuda, cupy.cuda.Device(device)
        self._sum = library.NCCL_SUM
        names = ("float16", "bfloat16", "float32", "float64")
        self._types = {name: getattr(library, f"NCCL_{name.upper()}") for name in names}
        _check_gpus(mpi_comm, self._device.pci_bus_id)
        with self._device:
            self._comm = library.NcclCommunicator(mpi_comm.size, unique, mpi_comm.rank)
            # Never destroyed: that would wait for ever for an existing graph with its sums, for example when Python
            # ends, and for the other processes of this machine.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._comm))
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._forked, self._joined = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self.asked = Asked()
        self._held = []  # memory of other streams that this one reads, and that their next work would reuse
        self._is_joined = True

    @contextlib.contextmanager
    def beside(self, *held):
        """Inside the block the stream of NCCL is the current one.

        It waits for all earlier work of the current stream, and of the side stream of
        :mod:`mixprec.backends.wgrad_stream`.

        Args:
            held: arrays that are used on it, but were not allocated there.
        """
        with self._device:
            current = self._cuda.get_current_stream()
            self._forked.record(current)
            self._stream.wait_event(self._forked)
            last = wgrad_stream.last()
            if last is not None:
                self._stream.wait_event(last)
            self._held.append(held)
            self._is_joined = False
            with self._stream:
                yield

    def join(self):
        """Makes later work of the current stream wait for all work started in :meth:`beside`."""
        if not self._is_joined:
            with self._device:
                self._joined.record(self._stream)
                self._cuda.get_current_stream().wait_event(self._joined)
            self._held.clear()
            self._is_joined = True

    def all_reduce(self, array, found=None):
        """Adds up an array of all processes, the same bits everywhere; inside :meth:`beside`.

        Args:
            array: contiguous.
            found: array for the sum, ``None`` for the same one.
        """
        arguments = array.data.ptr, (array if found is None else found).data.ptr, array.size
        record("nccl", "all_reduce", *arguments, array.dtype.name)
        self._comm.allReduce(*arguments, self._types[array.dtype.name], self._sum, self._stream.ptr)

    def all_gather(self, array, found):
        """Writes the arrays of all processes into ``found``, in the order of ranks; inside :meth:`beside`."""
        arguments = array.data.ptr, found.data.ptr, array.size
        record("nccl", "all_gather", *arguments, array.dtype.name)
        self._comm.allGather(*arguments, self._types[array.dtype.name], self._stream.ptr)

    def broadcast(self, array):
        """Writes the array of rank 0 into the arrays of all processes; inside :meth:`beside`."""
        arguments = array.data.ptr, array.size
        record("nccl", "broadcast", *arguments, array.dtype.name)
        self._comm.bcast(*arguments, self._types[array.dtype.name], 0, self._stream.ptr)


def _library(mpi_comm):
    """Returns CuPy's module, which all processes have, and the id of a new communicator, chosen by rank 0."""
    # Memory of a graph would be registered while it is captured: processes would wait for each other, though one may
    # fail alone, and the order of sums may differ from eager steps.
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    library, unique, error = None, None, None
    try:
        from cupy.cuda import nccl as library

        library.get_version()
        if mpi_comm.rank == 0:
            unique = library.get_unique_id()
    except Exception as failure:
        error = " ".join(str(failure).split())
    for rank, other in enumerate(mpi_comm.allgather(error)):
        if other is not None:
            raise RuntimeError(
                f"rank {rank} has no working NCCL, which GPUs need to exchange gradients: pip install "
                f"nvidia-nccl-cu13, or -cu12 ({other})"
            )
    return library, mpi_comm.bcast(unique)


def _check_gpus(mpi_comm, bus):
    """Checks that each process has a different GPU, by PCI addresses; NCCL's own error would not name the processes."""
    first = {}
    for rank, gpu in enumerate(mpi_comm.allgather((platform.node(), bus))):
        if first.setdefault(gpu, rank) != rank:
            raise RuntimeError(
                f"ranks {first[gpu]} and {rank} share one GPU: call chainer.cuda.get_device_from_id("
                "communicator.intra_rank).use() before the model goes there, or start fewer processes"
            )
