"""CuPy's side of the batched update, with a stub in CuPy's place."""

import ctypes
import sys
import threading
import types

import numpy as np
import pytest

from mixprec.backends import device_log, launch
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import settings


class Pinned(np.ndarray):
    ptr = property(lambda self: self.ctypes.data)


class Event:
    stream = None

    def __init__(self, *, disable_timing):
        assert disable_timing
        self._done = True

    @property
    def done(self):
        assert not Event.stream.capturing, "an event was asked during a capture"
        return self._done

    def record(self, stream):
        assert not stream.capturing, "a graph records an event that somebody is going to ask"
        self._done = False
        stream.events.append(self)

    def synchronize(self):
        while not self._done:
            Event.stream.next_copy()


class Stream:
    """Does nothing until it is synchronized."""

    ptr = 77

    def __init__(self):
        self.copies, self.events = [], []
        self.capturing = False

    def is_capturing(self):
        return self.capturing

    def synchronize(self):
        while self.copies:
            self.next_copy()

    def next_copy(self):
        """Does one copy; an event comes after each."""
        ctypes.memmove(*self.copies.pop(0))
        self.events.pop(0)._done = True


class Device:
    current = 0

    def __init__(self, number):
        self.id = number

    def __enter__(self):
        self._before, Device.current = Device.current, self.id

    def __exit__(self, *error):
        Device.current = self._before


class OfCupy(np.ndarray):
    """With the attributes that are CuPy's own; works on its own device only, as without peer access."""

    id = 1
    data = property(lambda self: types.SimpleNamespace(ptr=self.ctypes.data, device_id=self.id))
    device = property(lambda self: Device(self.id))
    _c_contiguous = property(lambda self: self.flags.c_contiguous)

    def copy(self, order="C"):
        assert Device.current == self.id
        return super().copy(order)

    def __setitem__(self, index, value):
        assert Device.current == self.id
        super().__setitem__(index, value)


@pytest.fixture
def cupy(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(Event, "stream", stream)
    allocated = []

    class Pool:
        def malloc(self, size):
            allocated.append(np.zeros(size, np.uint8))
            return allocated[-1].view(Pinned)

    def memcpy_async(target, source, size, kind, at):
        assert (kind, at) == (1, stream.ptr)
        stream.copies.append((target, source, size))

    def zeros(shape, dtype):
        allocated.append(np.zeros(shape, dtype))
        return types.SimpleNamespace(data=types.SimpleNamespace(ptr=allocated[-1].ctypes.data))

    stub = types.SimpleNamespace(
        ndarray=OfCupy,
        zeros=zeros,
        cuda=types.SimpleNamespace(
            Device=Device,
            Event=Event,
            get_current_stream=lambda: stream,
            PinnedMemoryPool=Pool,
            runtime=types.SimpleNamespace(memcpyAsync=memcpy_async, memcpyHostToDevice=1),
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", stub)
    stub.stream, stub.allocated = stream, allocated
    return stub


def test_arguments_are_8_bytes_each_and_arrays_of_numpy_by_value(cupy):
    """CuPy takes arrays of one element: a struct with all of the memory. Records have its numbers."""
    launched = []
    kernel = launch.Kernel("k", lambda *arguments: launched.append(arguments))
    table = np.arange(6).reshape(2, 3)
    with device_log.recording() as records:
        launch.CupyLauncher(0).launch(kernel, 3, [1 << 47, table, float("inf")])
    ((grid, threads, (number, struct, real)),) = launched
    assert (grid, threads, number, real) == ((3,), (256,), 1 << 47, np.inf)
    assert (number.dtype, real.dtype) == (np.int64, np.float64)
    assert (struct.size, struct.nbytes, struct.tobytes()) == (1, table.nbytes, table.tobytes())
    assert records == [device_log.Record("kernel", "k", (3, 1 << 47, *range(6), np.inf))]


def _target(size):
    memory = np.zeros(size, np.uint8)
    return memory, types.SimpleNamespace(data=types.SimpleNamespace(ptr=memory.ctypes.data))


def test_uploads_do_not_wait_and_take_what_was_there(cupy):
    """The source may change at once, and so may the staging memory of a copy that is done, but of no other."""
    launcher = launch.CupyLauncher(0)
    source = np.arange(16, dtype=np.uint8)
    targets = [_target(16) for _ in range(3)]
    for number, (_, target) in enumerate(targets):
        launcher.upload(source, target)
        source += 1
        assert len(cupy.stream.copies) == number + 1
    assert len(cupy.allocated) == 3
    cupy.stream.synchronize()
    for number, (memory, _) in enumerate(targets):
        np.testing.assert_array_equal(memory, np.arange(16) + number)


def test_a_host_that_is_far_ahead_waits_for_the_oldest_copy(cupy, monkeypatch):
    """So that pinned memory does not grow with the number of steps that the device is behind."""
    monkeypatch.setattr(launch, "_STAGED", 64)
    launcher = launch.CupyLauncher(0)
    memory, target = _target(16)
    for number in range(7):
        launcher.upload(np.full(16, number, np.uint8), target)
        assert len(cupy.stream.copies) == min(number + 1, 4)
    assert (memory == 2).all()
    assert len(cupy.allocated) == 4
    launcher.upload(np.full(8, 9, np.uint8), target)
    assert len(cupy.stream.copies) == 5
    cupy.stream.synchronize()
    assert (memory == [9] * 8 + [6] * 8).all()


def test_nothing_is_uploaded_while_a_graph_captures(cupy):
    """Each launch of the graph would copy what was there then."""
    launcher = launch.CupyLauncher(0)
    _, target = _target(8)
    cupy.stream.capturing = True
    with pytest.raises(CaptureError, match="would be frozen"):
        launcher.upload(np.full(8, 2, np.uint8), target)
    assert cupy.stream.copies == cupy.allocated == []


def test_counters_are_the_same_on_a_stream_and_others_on_another(cupy, monkeypatch):
    launcher = launch.CupyLauncher(0)
    first = launcher.counters(4096)
    assert launcher.counters(1) == first
    (memory,) = cupy.allocated
    assert (memory.dtype, memory.ctypes.data, memory.size, memory.any()) == (np.uint32, first, 4096, False)
    with pytest.raises(ValueError, match="4097 counters requested, and there are 4096"):
        launcher.counters(4097)
    monkeypatch.setattr(Stream, "ptr", 78)
    assert launcher.counters(1) != first
    monkeypatch.setattr(Stream, "ptr", 77)
    assert launcher.counters(1) == first
    monkeypatch.setattr(Stream, "ptr", 2)  # cudaStreamPerThread: of this thread
    launcher.counters(1)
    thread = threading.Thread(target=lambda: launcher.counters(1))
    thread.start()
    thread.join()
    assert len(cupy.allocated) == 4


def test_counters_are_not_made_while_a_graph_captures(cupy):
    """They would be set to zero by each launch of the graph, and not before."""
    launcher = launch.CupyLauncher(0)
    cupy.stream.capturing = True
    with pytest.raises(CaptureError, match="run the step eagerly first"):
        launcher.counters(1)
    cupy.stream.capturing = False
    there = launcher.counters(1)
    cupy.stream.capturing = True
    assert launcher.counters(1) == there


def test_arrays_of_another_device_than_the_current_one(cupy):
    launcher = launch.CupyLauncher(1)
    arrays = [np.ones((2, 3), np.float16).view(OfCupy) for _ in range(3)]
    assert launcher.addresses(arrays) == [array.ctypes.data for array in arrays] == list(map(launcher.address, arrays))
    assert launcher.addresses([]) == []
    turned = arrays[0].T
    assert launcher.orders([arrays[0], turned, arrays[1]]) == ([True, False, True], [turned.strides])
    assert launcher.orders(arrays) == launcher.orders([]) == ()
    assert launcher.orders([*arrays, np.ones(2)]) is None
    assert launcher.addresses([*arrays, np.ones(2)]) is None
    arrays[1].id = 0
    assert launcher.addresses(arrays) is None
    assert [launcher.holds(array) for array in [*arrays, np.ones(2)]] == [True, False, True, False]
    assert launcher.contiguous(arrays[0].T).flags.c_contiguous
    launcher.zero(arrays[0])
    assert not arrays[0].any()
    assert Device.current == 0


# Compiled kernels on disk


class Compiler:
    """What CuPy and NVRTC have to say, and how often a source is compiled."""

    def __init__(self, cupy, monkeypatch):
        self.sources, self.loaded = [], []
        cupy.__version__ = "14.2.0"
        cupy.cuda.nvrtc = types.SimpleNamespace(getVersion=lambda: (13, 0))
        cupy.cuda.Module = lambda: types.SimpleNamespace(load=self.loaded.append, get_function=lambda name: name)
        self.cupy = cupy
        monkeypatch.setattr(Device, "compute_capability", "90", raising=False)
        monkeypatch.setattr(launch, "binary_of", lambda source: self.sources.append(source) or source.encode() * 100)

    def compile(self, source="void a() {}"):
        """Compiles in a process of its own; returns how often NVRTC was asked."""
        before = len(self.sources)
        launch._compile.cache_clear()
        kernels = launch.CupyLauncher(0).compile(source, ("a",))
        assert kernels == launch.CupyLauncher(0).compile(source, ("a",))
        assert self.loaded[-1] == source.encode() * 100
        return len(self.sources) - before


@pytest.fixture
def compiler(cupy, announced, monkeypatch, tmp_path):
    settings.configure(cache=tmp_path)
    yield Compiler(cupy, monkeypatch)
    launch._compile.cache_clear()


def test_the_next_process_compiles_nothing(compiler, tmp_path):
    assert [compiler.compile() for _ in range(3)] == [1, 0, 0]
    assert compiler.compile("void b() {}") == 1
    assert len(list((tmp_path / "kernels").iterdir())) == 2


@pytest.mark.parametrize("change", ["source", "capability", "NVRTC", "CuPy", "options"])
def test_what_a_kernel_depends_on_is_compiled_anew(compiler, monkeypatch, change):
    assert compiler.compile() == 1
    source = "void a() {;}" if change == "source" else "void a() {}"
    if change == "capability":
        monkeypatch.setattr(Device, "compute_capability", "100")
    elif change == "NVRTC":
        compiler.cupy.cuda.nvrtc.getVersion = lambda: (13, 1)
    elif change == "CuPy":
        compiler.cupy.__version__ = "14.3.0"
    elif change == "options":
        monkeypatch.setattr(launch, "OPTIONS", (*launch.OPTIONS, "-G"))
    assert [compiler.compile(source), compiler.compile(source)] == [1, 0]


@pytest.mark.parametrize("damage", [slice(-1), slice(20), slice(0), None], ids=["short", "shorter", "empty", "changed"])
def test_a_damaged_kernel_is_compiled_anew_and_said_once(compiler, tmp_path, caplog, damage):
    compiler.compile()
    (path,) = (tmp_path / "kernels").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?" if damage is None else content[damage])
    assert [compiler.compile(), compiler.compile()] == [1, 0]
    assert caplog.messages == [f"{path} is damaged, it is made again (compiled kernels)"]
    assert path.read_bytes() == content


def test_a_kernel_in_the_place_of_another_is_not_taken(compiler, tmp_path, caplog):
    compiler.compile("void a() {}")
    (first,) = (tmp_path / "kernels").iterdir()
    compiler.compile("void b() {}")
    (second,) = set((tmp_path / "kernels").iterdir()) - {first}
    first.write_bytes(second.read_bytes())
    assert compiler.compile("void a() {}") == 1
    assert "is damaged" in caplog.text


def test_where_no_kernel_can_be_kept_that_is_said_once(compiler, tmp_path, caplog):
    (tmp_path / "kernels").write_text("a file in the way")
    assert [compiler.compile(), compiler.compile("void b() {}")] == [1, 1]
    kept = [message for message in caplog.messages if "cannot be kept" in message]
    assert kept == [f"compiled kernels cannot be kept in {tmp_path / 'kernels'}: File exists"]


def test_without_a_folder_no_kernel_is_kept(compiler, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings.configure(cache=None)
    assert [compiler.compile(), compiler.compile()] == [1, 1]
    assert list(tmp_path.iterdir()) == []


def test_no_module_is_ever_dropped(compiler):
    """It would be unloaded, perhaps while a graph captures."""
    launcher = launch.CupyLauncher(0)
    first = launcher.compile("0", ("a",))
    for number in range(1, 200):
        launcher.compile(str(number), ("a",))
    assert launcher.compile("0", ("a",)) is first
