"""Copies to pinned memory, with a stand-in for CUDA's streams whose work is done in any legal order; and on a GPU."""

import ctypes
import gc
import sys
import weakref

import numpy as np
import pytest

from mixprec.backends import device_log, pinned_copies
from mixprec.backends.pinned_copies import PinnedCopies
from mixprec.base.messages import OneLineError
from tests.stand_ins.copy_programs import Program
from tests.stand_ins.simulated_cuda import Array, CUDARuntimeError, Machine

SHAPE = 5, 30
ORDERS = 50


@pytest.fixture
def machine(monkeypatch):
    """Makes a new machine."""
    monkeypatch.setattr(pinned_copies, "_in_graphs", type(pinned_copies._in_graphs)(list))

    def new(seed=0):
        machine = Machine(seed)
        monkeypatch.setitem(sys.modules, "cupy", machine.cupy)
        return machine

    return new


class Device:
    """See :class:`~tests.stand_ins.copy_programs.Program`."""

    def __init__(self, machine):
        self._machine = machine

    def value(self, number):
        return np.arange(1, 151, dtype=np.float32).reshape(SHAPE) * np.float32(number)

    def new(self, number):
        array, value = Array(SHAPE, np.float32, self._machine.cupy.cuda.alloc(600)), self.value(number)
        address = array.data.ptr
        self._machine.main.ask(lambda: host_array(address).__setitem__(..., value))
        return array

    def change(self, array, number):
        address = array.data.ptr
        self._machine.main.ask(lambda: np.add(host_array(address), np.float32(number), out=host_array(address)))

    def read(self, array):
        found, address = np.zeros(SHAPE, np.float32), array.data.ptr
        self._machine.main.ask(lambda: found.__setitem__(..., host_array(address)))
        return found


def host_array(address):
    return np.ctypeslib.as_array((ctypes.c_float * 150).from_address(address)).reshape(SHAPE)


def is_right(machine, copies, seed):
    """Whether a program is right at once, and then, with slots that were used before, as a graph, three times."""
    first = Program(copies, Device(machine), seed)
    first.run()
    second = Program(copies, Device(machine), seed + 1000)
    machine.main.begin_capture()
    waits = machine.waits
    second.run()
    assert machine.waits == waits, "the host waits"
    launch = machine.main.end_capture()
    third = Program(copies, Device(machine), seed + 2000)
    results = []
    for _ in range(3):
        launch()
        machine.main.synchronize()
        results += [np.array_equal(found, value) for found, value in second.read]
        for found, _ in second.read:
            found.fill(0)
    third.run()
    machine.main.synchronize()
    return all(results) and all(np.array_equal(found, value) for found, value in first.read + third.read)


def test_random_programs(machine):
    for seed in range(ORDERS):
        new = machine(seed)
        assert is_right(new, PinnedCopies(0), seed)


def _out(copies, machine, array=None):
    array = Device(machine).new(1) if array is None else array
    root = copies.root_of(array)
    slot = copies.take(copies.size_of(root))
    return root, slot, copies.out(root, slot)


def test_the_host_does_not_wait(machine):
    machine = machine()
    copies = PinnedCopies(0)
    _, slot, mark = _out(copies, machine)
    copies.wait(mark)
    root, mark = copies.back(slot)
    copies.wait(mark)
    copies.join()
    assert machine.waits == 0
    assert machine.queues[machine.main.ptr]  # nothing was done
    assert copies.size_of(root) == 1024


def test_a_capture(machine):
    """Has to be joined; waits for what was outside are no part of it; slots in it are for other captures only."""
    machine = machine()
    copies = PinnedCopies(0)
    _, before, eager = _out(copies, machine)
    machine.main.begin_capture()
    _, slot, mark = _out(copies, machine)
    assert machine.waits == 1  # for the copy outside, once
    copies.wait(eager)
    copies.back(slot)
    with pytest.raises(CUDARuntimeError, match="Unjoined"):
        machine.main.end_capture()
    copies.wait(mark)
    copies.join()
    copies.give(slot)
    copies.give(before)
    assert copies.take(1024) is before
    machine.main.begin_capture()
    assert copies.take(1024) is slot
    machine.main.end_capture()
    copies.give(slot)
    copies.trim()
    assert slot in pinned_copies._in_graphs[0, 4096]
    copies.close()


def test_what_is_noted(machine):
    machine = machine()
    copies = PinnedCopies(0)
    with device_log.recording() as notes:
        root, slot, _ = _out(copies, machine)
        new, _ = copies.back(slot)
    assert [note[:3] for note in notes] == [("copy", "out", (root.ptr, 1024)), ("copy", "back", (new.ptr, 1024))]


def test_roots(machine):
    machine = machine()
    copies = PinnedCopies(0)
    memory = machine.cupy.cuda.MemoryPointer(machine.cupy.cuda.alloc(1024).mem, 36)
    array = Array((3, 4), np.float16, memory, (-2, 6))
    root = copies.root_of(array)
    layout = copies.layout_of(array)
    assert (layout.offset, layout.shape, layout.strides) == (36, (3, 4), (-2, 6))
    again = copies.array_in(root, layout)
    assert (again.data.ptr, again.strides, again.dtype) == (memory.ptr, array.strides, array.dtype)
    token = weakref.ref(copies.token_of(root))
    assert copies.token_of(copies.root_of(again)) is token()
    del root, array, memory
    assert token() is not None
    del again
    assert token() is None
    assert copies.root_of(Array((0, 4), np.float16, machine.cupy.cuda.alloc(1))) is None
    unowned = machine.cupy.cuda.MemoryPointer(machine.cupy.cuda.PinnedMemory(8), 0)
    assert copies.root_of(Array((2,), np.float32, unowned)) is None


def test_the_limit_of_pinned_memory(machine, monkeypatch):
    monkeypatch.setattr(pinned_copies, "host_memory", lambda: 50_000)
    monkeypatch.setattr(pinned_copies, "_pinned", type(pinned_copies._pinned)())
    machine()
    copies = PinnedCopies(0)
    slots = [copies.take(5000) for _ in range(2)]
    with pytest.raises(OneLineError, match=r"needs 2\.46e-05 GB of pinned memory, and may use 2e-05 GB: 40% of"):
        copies.take(5000)
    copies.give(slots.pop())
    assert copies.take(3000).capacity == 4096  # what is free is freed


def test_measuring(machine):
    machine = machine()
    copies = PinnedCopies(0)
    with copies.measuring():
        memory = [machine.cupy.cuda.alloc(512) for _ in range(3)]
        del memory[1:]
        assert (copies.peak(), copies.peak()) == (1536, 512)
    assert copies.total() == 2 * 10**9
    assert copies.seconds(copies.tick(), copies.tick()) == 1
    rates = copies.bus()
    assert len(rates) == 3
    assert copies.bus() is rates
    copies.close()


@pytest.mark.cupy
def test_what_cupy_has():
    """Memory of its pool takes a token, which goes with it; there are no weak references to it."""
    memory = pytest.importorskip("cupy.cuda.memory")
    cuda = pytest.importorskip("cupy").cuda
    pooled = memory.PooledMemory.__new__(memory.PooledMemory, None, None)
    token = PinnedCopies.token_of(None, pooled)
    assert PinnedCopies.token_of(None, pooled) is token
    reference = weakref.ref(token)
    with pytest.raises(TypeError):
        weakref.ref(pooled)
    del token
    assert reference() is not None
    del pooled
    assert reference() is None
    assert hasattr(cuda.get_allocator().__self__, "used_bytes")
    for name in ("alloc", "Event", "MemoryPointer", "PinnedMemory", "Stream", "get_elapsed_time", "using_allocator"):
        assert callable(getattr(cuda, name))
    for name in ("CUDARuntimeError", "memGetInfo", "memcpyAsync", "memcpyDeviceToHost", "memcpyHostToDevice"):
        assert hasattr(cuda.runtime, name)


@pytest.mark.gpu
def test_on_a_gpu():
    """At once, and in a graph that is launched with other numbers."""
    cupy = pytest.importorskip("cupy")
    from mixprec.backends.copies import copies_for
    from mixprec.graph_capture.cuda_graphs import graphs_of

    x = cupy.arange(2**20, dtype=np.float32).reshape(4, 2**18)
    copies, graphs = copies_for(x, "host"), graphs_of(x)

    def away_and_back():
        y = (x * 2)[:, ::-1]
        root, layout = copies.root_of(y), copies.layout_of(y)
        slot = copies.take(copies.size_of(root))
        copies.wait(copies.out(copies.token_of(root), slot))
        del y, root
        other = x * 0  # in the same memory, perhaps
        root, mark = copies.back(slot)
        copies.wait(mark)
        copies.give(slot)
        copies.join()
        return copies.array_in(root, layout) + other

    with copies.measuring(), graphs.on_stream():
        assert bool((away_and_back() == (x * 2)[:, ::-1]).all())
        assert copies.peak() >= 3 * x.nbytes
        graph, found = graphs.capture(away_and_back)
        for number in range(3):
            x += number
            graph.launch()
            assert bool((found == (x * 2)[:, ::-1]).all())
    out, back, latency = copies.bus()
    assert min(out, back) > 1e8
    assert 0 < latency < 0.1
    del graph, found
    gc.collect()
    copies.close()
