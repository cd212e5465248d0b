"""Copies of NumPy's arrays to a file: layouts, the order of copies, and measuring."""

import os
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends import file_copies
from mixprec.backends.file_copies import FileCopies
from mixprec.base.dtypes import BFLOAT16
from mixprec.base.process_limits import host_memory
from tests.cases import tries
from tests.stand_ins.copy_programs import Program

DTYPES = [np.bool_, np.uint8, np.int64, np.float16, BFLOAT16, np.float32, np.float64, np.complex64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("away")


@pytest.fixture(scope="module")
def copies(folder):
    copies = FileCopies(folder)
    yield copies
    copies.close()
    assert not list(folder.iterdir())


def out(copies, array):
    """Copies the memory of an array; returns the slot and the layout."""
    root = copies.root_of(array)
    slot = copies.take(copies.size_of(root))
    copies.wait(copies.out(root, slot))
    return slot, copies.layout_of(array)


def back(copies, slot, layout):
    root, mark = copies.back(slot)
    copies.wait(mark)
    return copies.array_in(root, layout)


# --- layouts

SLICES = st.builds(
    slice, st.sampled_from([None, 0, 1]), st.none(), st.sampled_from([None, 1, 2, -1, -2])
)  # never empty: axes have two elements at least


@given(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.sampled_from(DTYPES), st.data())
@settings(max_examples=tries(150), deadline=None)
def test_any_view_comes_back_bit_for_bit(copies, shape, dtype, data):
    owner = np.frombuffer(np.random.RandomState(0).bytes(8 * int(np.prod(shape))), np.uint8)
    owner = (owner[: np.prod(shape) * np.dtype(dtype).itemsize] & 1).view(dtype).reshape(shape).copy(order="C")
    view = owner.transpose(data.draw(st.permutations(range(len(shape)))))
    view = view.copy(order=data.draw(st.sampled_from("CFK"))) if data.draw(st.booleans()) else view
    view = view[tuple(data.draw(SLICES) for _ in shape)]
    view = np.broadcast_to(view, (2, *view.shape)) if data.draw(st.booleans()) else view
    slot, layout = out(copies, view)
    found = back(copies, slot, layout)
    copies.give(slot)
    assert (found.shape, found.dtype, found.strides) == (view.shape, view.dtype, view.strides)
    assert found.tobytes() == view.tobytes()
    assert copies.layout_of(found) == layout


def test_all_arrays_of_one_memory_have_one_root(copies):
    images = np.arange(240, dtype=np.float32).reshape(2, 5, 6, 4).transpose(0, 3, 1, 2)
    parts = [images[:, :1], images[:, 1:], images.reshape(-1), images.view(np.int32)]
    assert {id(copies.root_of(part)) for part in parts[:2]} == {id(copies.root_of(images))}
    assert copies.root_of(parts[2]) is not copies.root_of(images)  # a copy
    assert copies.root_of(parts[3]) is copies.root_of(images)


UNMOVABLE = [
    np.empty((0, 3)),
    np.array([None, 1]),
    np.frombuffer(bytearray(8), np.float32),
    np.ma.masked_array(np.ones(3), [0, 1, 0]).copy(),
    np.lib.stride_tricks.as_strided(np.frombuffer(bytes(8)), (3,), (0,)),
]


@pytest.mark.parametrize(
    "array", UNMOVABLE, ids=["empty", "objects", "memory of another", "a class of its own", "no memory of its own"]
)
def test_what_cannot_be_moved(copies, array):
    assert copies.root_of(array) is None


def test_a_token_goes_with_the_memory(copies):
    array = np.ones(100)
    token = weakref.ref(copies.token_of(copies.root_of(array)))
    view = array[3:]
    del array
    assert copies.token_of(copies.root_of(view)) is token()
    assert hash(token())
    del view
    assert token() is None
    assert not file_copies._tokens


# --- order


class Device:
    """See :class:`~tests.stand_ins.copy_programs.Program`: NumPy has done everything at once."""

    def value(self, number):
        return np.arange(1, 20001, dtype=np.float32) * np.float32(number)

    new = value

    def change(self, array, number):
        array += np.float32(number)

    def read(self, array):
        return array.copy()


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(copies, seed):
    program = Program(copies, Device(), seed)
    program.run()
    assert program.read
    for found, value in program.read:
        np.testing.assert_array_equal(found, value)


class Gate:
    """In place of a system call: waits until it is opened."""

    def __init__(self, monkeypatch, name):
        self.call, self.is_open, self.calls = getattr(os, name), threading.Event(), 0
        monkeypatch.setattr(os, name, self)

    def __call__(self, *arguments):
        self.calls += 1
        assert self.is_open.wait(60)
        return self.call(*arguments)


def test_the_host_goes_on_meanwhile(copies, monkeypatch):
    """A copy back comes after that out, and the next one out after that; memory that nobody holds is there so long."""
    gate = Gate(monkeypatch, "pwritev")
    array = np.arange(1000.0)
    slot = copies.take(8000)
    copies.out(array, slot)
    del array
    root, mark = copies.back(slot)
    copies.give(slot)
    assert copies.take(8000) is slot
    second = copies.out(np.zeros(1000), slot)
    assert not mark.done()
    assert gate.calls <= 1
    gate.is_open.set()
    copies.wait(mark)
    np.testing.assert_array_equal(root.view(np.float64), np.arange(1000.0))
    copies.wait(second)
    np.testing.assert_array_equal(back(copies, slot, copies.layout_of(np.zeros(1000))), np.zeros(1000))


def test_nothing_holds_the_memory_after_a_copy(copies):
    array = np.ones(1000)
    token = weakref.ref(copies.token_of(array))
    slot = copies.take(8000)
    copies.wait(copies.out(array, slot))
    del array
    assert token() is None
    root, mark = copies.back(slot)
    copies.wait(mark)
    token = weakref.ref(copies.token_of(root))
    del root
    assert token() is None


# --- measuring


@pytest.mark.parametrize("is_started", [False, True])
def test_measuring(copies, is_started):
    """The memory of the process, and what tracemalloc has counted since; who has started that keeps it."""
    if is_started:
        tracemalloc.start()
    try:
        with copies.measuring():
            before = copies.peak()
            assert 2**24 < before < 2**34
            array = np.ones(10**6, np.uint8)
            del array
            assert before + 10**6 <= copies.peak() < before + 2 * 10**6
            assert copies.peak() < before + 10**6
            array = np.ones(10**6, np.uint8)
            assert copies.peak() >= before + array.nbytes
        assert tracemalloc.is_tracing() == is_started
    finally:
        tracemalloc.stop()


def test_times_and_rates(copies):
    start = copies.tick()
    rates = copies.bus()
    assert copies.bus() is rates
    assert all(rate > 0 for rate in rates)
    assert copies.seconds(start, copies.tick()) > 0


def machine(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return host_memory(root)


def test_memory_of_the_host(tmp_path, copies):
    assert copies.total() > 2**20
    assert machine(tmp_path, {"proc/meminfo": "Other: 3 kB\nMemTotal:   1000 kB\n"}) == 1024000
    assert machine(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "max\n"}) == 1024000
    assert machine(tmp_path, {"sys/fs/cgroup/memory.max": "5000\n"}) == 5000
    assert machine(tmp_path, {"sys/fs/cgroup/a/b/memory.max": "4000\n"}) == 4000
    version1 = {"proc/self/cgroup": "4:memory:/a\n3:cpu:/b\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000"}
    assert machine(tmp_path, version1) == 3000
