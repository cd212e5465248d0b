"""NCCL's stream and communicator, with a stub in CuPy's place that notes what it is asked."""

import contextlib
import gc
import os
import sys
import types

import numpy as np
import pytest

from mixprec.backends import nccl, wgrad_stream
from mixprec.backends.device_log import recording
from mixprec.backends.wgrad_stream import AHEAD, SideStream

asked = []  # of all streams and events


class Device(contextlib.nullcontext):
    pci_bus_id = "0000:02:00.0"


class Event:
    count = 0

    def __init__(self, *, disable_timing):
        assert disable_timing
        Event.count += 1
        self.name = f"event {Event.count}"

    def record(self, stream):
        asked.append(("record", self.name, stream.ptr))


class Stream:
    current = None

    def __init__(self, *, non_blocking, ptr=2):
        self.ptr = ptr

    def wait_event(self, event):
        asked.append(("wait", event.name, self.ptr))

    def __enter__(self):
        self._outer, Stream.current = Stream.current, self

    def __exit__(self, *_):
        Stream.current = self._outer


class Communicator:
    def __init__(self, size, unique, rank):
        asked.append(("communicator", size, unique, rank))

    def __getattr__(self, name):
        return lambda *arguments: asked.append((name, *arguments))


class Mpi:
    rank, size = 1, 2
    errors = (None, None)

    def bcast(self, value):
        assert value is None
        return b"unique"

    bus = "0000:01:00.0"  # of rank 0

    def allgather(self, value):
        if isinstance(value, tuple):
            return [(value[0], self.bus), value]
        return [self.errors[0], value or self.errors[1]]


class Chainermn:
    def __init__(self):
        self.mpi_comm = Mpi()


def _array(address, size, dtype="float16", device=0):
    data = types.SimpleNamespace(ptr=address)
    device = types.SimpleNamespace(id=device)
    return types.SimpleNamespace(data=data, size=size, dtype=np.dtype(dtype), device=device)


@pytest.fixture
def cupy(monkeypatch):
    asked.clear()
    Event.count = 0
    names = "NCCL_SUM NCCL_FLOAT16 NCCL_BFLOAT16 NCCL_FLOAT32 NCCL_FLOAT64"
    library = types.ModuleType("cupy.cuda.nccl")
    library.__dict__.update({name: name[5:].lower() for name in names.split()})
    library.__dict__.update(NcclCommunicator=Communicator, get_version=lambda: 22703)
    cuda = types.ModuleType("cupy.cuda")
    cuda.__dict__.update(
        Device=Device, Stream=Stream, Event=Event, nccl=library, get_current_stream=lambda: Stream.current
    )
    module = types.ModuleType("cupy")
    module.cuda = cuda
    for each in (module, cuda, library):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    monkeypatch.setattr(Stream, "current", Stream(non_blocking=True, ptr=7))
    return module


def test_work_is_forked_and_joined_by_events(cupy):
    """The current stream waits once for all that was asked; what is read meanwhile is held."""
    found = nccl.nccl_of(communicator := Chainermn(), _array(0, 1))
    assert asked == [("communicator", 2, b"unique", 1)]
    other = Chainermn()
    other.mpi_comm = communicator.mpi_comm  # two of ChainerMN, both of MPI.COMM_WORLD
    assert nccl.nccl_of(other, _array(0, 1)) is nccl.nccl_of(communicator, _array(0, 1)) is found
    with pytest.raises(ValueError, match="NCCL is on GPU 0, arrays on GPU 1: make another communicator"):
        nccl.nccl_of(communicator, _array(0, 1, device=1))
    asked.clear()
    with recording() as records:
        for address in (2**20, 2**21):
            with found.beside(object()):
                assert Stream.current.ptr == 2
                found.all_reduce(_array(address, 10))
        assert len(found._held) == 2
        found.join()
        found.join()
    fork = [("record", "event 1", 7), ("wait", "event 1", 2)]
    sums = [("allReduce", address, address, 10, "float16", "sum", 2) for address in (2**20, 2**21)]
    assert asked == [*fork, sums[0], *fork, sums[1], ("record", "event 2", 2), ("wait", "event 2", 7)]
    assert not found._held
    assert [record[:3] for record in records] == [
        ("nccl", "all_reduce", (address, address, 10, "float16")) for address in (2**20, 2**21)
    ]
    asked.clear()
    found.all_gather(_array(1, 3, "float32"), _array(9, 6, "float32"))
    found.broadcast(_array(1, 3, "float32"))
    assert asked == [("allGather", 1, 9, 3, "float32", 2), ("bcast", 1, 3, "float32", 0, 2)]


def test_gradients_of_the_second_stream_are_waited_for(cupy):
    """Its marks are not used up by that."""
    found = nccl.nccl_of(Chainermn(), _array(0, 1))
    marks = []

    class Streams:
        second = contextlib.nullcontext

        def fork(self):
            pass

        def mark(self):
            marks.append(Event(disable_timing=True))
            return marks[-1]

        def wait(self, event):
            asked.append(("wait", event.name, 7))

    beside = SideStream(Streams())
    with wgrad_stream.using(beside):
        for _ in range(AHEAD + 1):
            beside.run(lambda: None, held=())
        asked.clear()
        with found.beside():
            pass
        assert ("wait", marks[-1].name, 2) in asked
        assert len(marks) == AHEAD + 1
        beside.join()
        asked.clear()
        with found.beside():
            pass
        assert [what for what, *_ in asked] == ["record", "wait"]
    assert wgrad_stream.last() is None


@pytest.mark.parametrize("by_whom", ["another", "this one"])
def test_a_process_without_nccl_is_an_error_of_all(cupy, by_whom, monkeypatch):
    communicator = Chainermn()
    if by_whom == "another":
        communicator.mpi_comm.errors = ("libnccl.so.2: cannot open", None)
    else:
        monkeypatch.delattr(cupy.cuda, "nccl")
        monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    rank = 0 if by_whom == "another" else 1
    with pytest.raises(RuntimeError, match=f"rank {rank} has no working NCCL, .*: pip install nvidia-nccl-cu13"):
        nccl.nccl_of(communicator, _array(0, 1))


def test_a_communicator_of_nccl_is_never_destroyed(cupy, monkeypatch):
    """It would wait for graphs that are there when Python ends. These register nothing while they are captured."""
    destroyed = []
    monkeypatch.setattr(Communicator, "__del__", destroyed.append, raising=False)
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    before = len(nccl._of_communicators)
    nccl.nccl_of(communicator := Chainermn(), _array(0, 1))
    assert len(nccl._of_communicators) == before + 1
    del communicator
    gc.collect()
    assert len(nccl._of_communicators) == before  # the one of ChainerMN is gone
    assert not destroyed
    assert os.environ["NCCL_GRAPH_REGISTER"] == "0"


def test_two_processes_with_one_gpu_are_an_error_of_all(cupy):
    communicator = Chainermn()
    communicator.mpi_comm.bus = Device.pci_bus_id
    with pytest.raises(RuntimeError, match="ranks 0 and 1 share one GPU: call chainer"):
        nccl.nccl_of(communicator, _array(0, 1))


def test_rank_0_without_a_network_is_an_error_of_all(cupy, monkeypatch):
    """The others would wait for its identity."""
    told = []

    def fails():
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR")

    class First(Mpi):
        rank = 0

        def allgather(self, value):
            told.append(value)
            return [value, None]

    monkeypatch.setattr(cupy.cuda.nccl, "get_unique_id", fails, raising=False)
    monkeypatch.setattr(sys.modules[__name__], "Mpi", First)
    with pytest.raises(RuntimeError, match=r"rank 0 has no working NCCL.*SYSTEM_ERROR"):
        nccl.nccl_of(Chainermn(), _array(0, 1))
    assert told == ["NCCL_ERROR_SYSTEM_ERROR"]
