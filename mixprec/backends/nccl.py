"""NCCL among the processes of a communicator of ChainerMN, on a stream of its own.

Sums of gradients (:mod:`mixprec.distributed`) and statistics of batch normalizations over several processes
(:mod:`~mixprec.backends.joint_batch`) share one :class:`Nccl`. NCCL pairs what processes ask in the order in which they
ask it; with two communicators, or two streams, two processes could wait for each other.

The host never waits. The stream of NCCL begins with what it is asked when the current one has done all that it was
asked before, and the current one goes on after :meth:`Nccl.join`.
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

    Communicators of ChainerMN over one of MPI share it, as those of an optimizer and of a network that made its own.

    For an array of a stand-in it is what the attribute ``nccl_of`` of the primitives returns that
    :func:`mixprec.backends.register` was given.

    Args:
        communicator: one of ChainerMN, or any object with its attribute ``mpi_comm``.
        array: on the device of this process.

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
    """What a process has asked of NCCL, for the message if another one has asked something else."""

    def __init__(self):
        self._places = []

    def add(self, place):
        """Notes a place: what is asked by which line of the model, a short str."""
        if len(self._places) < MOST:
            self._places.append(place)

    def taken(self):
        """Returns all places since the last call, a list in their order; at most ``MOST``."""
        places, self._places = self._places, []
        return places


MOST = 10_000  # places that are noted: without an optimizer of mixprec they are never taken


class Nccl:
    """One communicator of NCCL, and one stream.

    Args:
        mpi_comm: ``mpi4py.MPI.Intracomm``, by which processes find each other.
        device: number of the CUDA device of this process.

    Attributes:
        device: the same.
        asked: :class:`Asked`.

    Raises:
        RuntimeError: CuPy has no NCCL in one of the processes, or two have one GPU; in all of them, naming the first.
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
            # Never destroyed: that would wait for ever for a graph with its sums that is still there, as when Python
            # ends in any order, and for the other processes of this machine.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._comm))
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._forked, self._joined = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self.asked = Asked()
        self._held = []  # what the stream reads: memory of other streams, whose next work would get it
        self._is_joined = True

    @contextlib.contextmanager
    def beside(self, *held):
        """Inside of the block the stream of NCCL is the current one.

        It comes after all that the current stream has been asked, and the second one of :mod:`mixprec.backends.wgrad_stream`.

        Args:
            held: what is read or written on it, and was not allocated there.
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
        """What the current stream is asked from now on comes after all that was asked :meth:`beside` it."""
        if not self._is_joined:
            with self._device:
                self._joined.record(self._stream)
                self._cuda.get_current_stream().wait_event(self._joined)
            self._held.clear()
            self._is_joined = True

    def all_reduce(self, array, found=None):
        """Adds up an array of all processes, the same bits everywhere; inside of :meth:`beside`.

        Args:
            array: contiguous.
            found: array for the sum, ``None`` for the same one.
        """
        arguments = array.data.ptr, (array if found is None else found).data.ptr, array.size
        record("nccl", "all_reduce", *arguments, array.dtype.name)
        self._comm.allReduce(*arguments, self._types[array.dtype.name], self._sum, self._stream.ptr)

    def all_gather(self, array, found):
        """Writes the arrays of all processes into ``found``, in the order of ranks; inside of :meth:`beside`."""
        arguments = array.data.ptr, found.data.ptr, array.size
        record("nccl", "all_gather", *arguments, array.dtype.name)
        self._comm.allGather(*arguments, self._types[array.dtype.name], self._stream.ptr)

    def broadcast(self, array):
        """Writes the array of rank 0 into those of all processes; inside of :meth:`beside`."""
        arguments = array.data.ptr, array.size
        record("nccl", "broadcast", *arguments, array.dtype.name)
        self._comm.bcast(*arguments, self._types[array.dtype.name], 0, self._stream.ptr)


def _library(mpi_comm):
    """Returns CuPy's module, which all processes have, and the identity of a new communicator, that of rank 0."""
    # Memory of a graph would be registered while it is captured: processes wait for each other there, where one may
    # fail alone, and sums may be in another order than in eager steps.
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
                f"rank {rank} has no NCCL that works, by which GPUs exchange gradients: pip install nvidia-nccl-cu13, "
                f"or -cu12 ({other})"
            )
    return library, mpi_comm.bcast(unique)


def _check_gpus(mpi_comm, bus):
    """Makes sure that each process has another GPU, by its address on the PCI bus; NCCL would not say which ones."""
    first = {}
    for rank, gpu in enumerate(mpi_comm.allgather((platform.node(), bus))):
        if first.setdefault(gpu, rank) != rank:
            raise RuntimeError(
                f"ranks {first[gpu]} and {rank} have one GPU: call chainer.cuda.get_device_from_id("
                "communicator.intra_rank).use() before the model goes there, or start fewer processes"
            )
