"""CuPy's side of graph capture, with a stub in CuPy's place that writes down what it is asked."""

import contextlib
import gc
import sys
import types

import numpy as np
import pytest

from mixprec.backends import device_log, transfers
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.wgrad_stream import AHEAD
from mixprec.graph_capture.cuda_graphs import CupyGraphs


class Log(list):
    def saying(self, *words, result=None):
        return lambda *arguments, **keywords: (self.append((*words, *arguments)), result)[1]


class Stream:
    current = None

    def __init__(self, log, name):
        self._log, self._name = log, name
        self.broken = False

    def __repr__(self):
        return self._name

    def wait_event(self, event):
        self._log.append(("wait", self, event))

    def synchronize(self):
        self._log.append(("synchronize", self))

    def begin_capture(self):
        self._log.append(("begin", self))

    def end_capture(self):
        self._log.append(("end", self))
        if self.broken:
            raise RuntimeError("the capture is broken")
        return types.SimpleNamespace(launch=self._log.saying("launch"), upload=self._log.saying("upload"))

    def is_capturing(self):
        return False

    def __enter__(self):
        self._before, Stream.current = Stream.current, self

    def __exit__(self, *error):
        Stream.current = self._before


class Pool:
    def __init__(self, log):
        self.malloc = log.saying("malloc")
        self._log = log
        self.bytes, self.held = 512, 0  # held: by arrays
        self.limit = 4096  # of the environment

    def set_limit(self, *, size):
        self.limit = size

    def free_all_blocks(self):
        self._log.append(("free", self))
        self.bytes = self.held

    def total_bytes(self):
        return self.bytes


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def cupy(log, monkeypatch):
    default = Pool(log)

    def event(*, disable_timing):
        assert disable_timing
        own = types.SimpleNamespace(done=False, synchronize=log.saying("wait for event"))
        own.record = lambda stream: log.append(("record", own, stream))
        return own

    @contextlib.contextmanager
    def using_allocator(allocate):
        log.append(("allocator", allocate))
        yield
        log.append(("allocator", None))

    cuda = types.SimpleNamespace(
        Device=lambda number: contextlib.nullcontext(),
        Stream=lambda *, non_blocking: Stream(log, "capture stream" if non_blocking else "blocking"),
        Event=event,
        MemoryPool=lambda allocate: Pool(log),
        Memory=lambda size: ("memory", size),
        MemoryPointer=lambda memory, offset: ("pointer", memory, offset),
        PinnedMemoryPool=lambda: types.SimpleNamespace(malloc=lambda size: np.zeros(size, np.uint8).view(Pinned)),
        get_allocator=lambda: lambda size: types.SimpleNamespace(ptr=4096, size=size),
        get_current_stream=lambda: Stream.current,
        using_allocator=using_allocator,
        runtime=types.SimpleNamespace(
            memcpyAsync=log.saying("memcpy"), memcpyHostToDevice=1, CUDARuntimeError=OutOfMemory
        ),
    )
    stub = types.SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: default, empty=np.empty)
    monkeypatch.setitem(sys.modules, "cupy", stub)
    monkeypatch.setattr(Stream, "current", Stream(log, "user's"))
    transfers._pinned.cache_clear()
    yield stub
    transfers._pinned.cache_clear()
    transfers._under_way.clear()


class OutOfMemory(Exception):
    pass


class Pinned(np.ndarray):
    ptr = property(lambda self: self.ctypes.data)


def test_work_is_ordered_after_and_before_the_callers(cupy, log):
    own, users = CupyGraphs(0), Stream.current
    with own.on_stream():
        assert repr(Stream.current) == "capture stream"
        (_, event, stream), waits = log
        assert (stream, waits) == (users, ("wait", Stream.current, event))
        log.clear()
        with own.on_stream():  # nothing more to be ordered
            assert log == []
        assert repr(Stream.current) == "capture stream"
    (_, event, stream), waits = log
    assert repr(stream) == "capture stream"
    assert waits == ("wait", users, event)
    assert Stream.current is users


def test_work_aside_waits_and_is_waited_for(cupy, log):
    """Each with an event that nobody has recorded anew before the other stream waits for it."""
    own, streams = CupyGraphs(0), []
    with own.on_stream():
        first = Stream.current
        log.clear()
        for _ in range(AHEAD + 2):
            own.side_stream.run(lambda: streams.append(Stream.current), held=())
            assert Stream.current is first
        own.side_stream.join()
        own.side_stream.join()  # nothing more to wait for
    second = streams[0]
    assert second is not first
    assert set(map(id, streams)) == {id(second)}
    calls = log[:-2]  # without those of the end of on_stream()
    waits = {id(first): 0, id(second): 0}
    recorded = {}
    for kind, *words in calls:
        if kind == "record":
            event, stream = words
            assert recorded.get(id(event), (None, True))[1], "nobody has waited for this event yet"
            recorded[id(event)] = stream, False
        else:
            stream, event = words
            recorder, _ = recorded[id(event)]
            assert recorder is (first if stream is second else second)
            recorded[id(event)] = recorder, True
            waits[id(stream)] += 1
    assert waits == {id(first): AHEAD + 2, id(second): AHEAD + 2}


def test_a_capture_runs_with_memory_of_its_own_and_without_garbage_collection(cupy, log):
    own = CupyGraphs(0)
    seen = []

    def function():
        seen.append((gc.isenabled(), [words[0] for words in log]))
        return 5

    with own.on_stream():
        log.clear()
        graph, result = own.capture(function)
    assert result == 5
    assert seen == [(False, ["synchronize", "free", "allocator", "begin"])]
    assert gc.isenabled()
    assert [words[0] for words in log][4:7] == ["end", "allocator", "upload"]
    allocators = [words[1] for words in log if words[0] == "allocator"]
    assert allocators == [graph.pool.malloc, None]
    log.clear()
    graph.launch()
    assert log == [("launch", own._stream)]


@pytest.mark.parametrize("broken", [False, True])
def test_a_capture_that_fails_is_ended(broken, cupy, log):
    own = CupyGraphs(0)
    own._stream.broken = broken

    def function():
        raise ValueError("the user's")

    with own.on_stream(), pytest.raises(ValueError, match="the user's"):
        own.capture(function)
    assert ("end", own._stream) in log
    assert gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="the user's"):
            own.capture(function)
        assert not gc.isenabled()  # whoever has switched it off wants it so
    finally:
        gc.enable()


def test_memory_of_a_graph_that_is_gone_is_given_back(cupy, log):
    """By hand: CuPy 14 loses what is free in a pool that is dropped. What arrays hold stays until they are gone."""
    own = CupyGraphs(0)
    graph, _ = own.capture(lambda: None)
    kept, _ = own.capture(lambda: None)
    pool = graph.pool
    assert pool is not kept.pool
    assert pool.limit == 0  # a pool that has come to its limit would free what the graph writes into
    pool.held = 128
    del graph
    assert own.pool_bytes == 1024
    log.clear()
    own.release()
    assert [words[0] for words in log] == ["synchronize", "free", "free"]
    assert own.pool_bytes == 512 + 128
    pool.held = 0
    own.release()
    assert own.pool_bytes == 512
    assert own._pools == [kept.pool]


def test_a_pool_without_memory_frees_nothing(cupy):
    """CuPy's pool answers its own exception by giving back what is free in it; a graph writes there."""
    own = CupyGraphs(0)
    memory = own._allocate(512)
    assert memory == ("pointer", ("memory", 512), 0)

    def fail(size):
        raise OutOfMemory("cudaErrorMemoryAllocation: out of memory")

    cupy.cuda.Memory = fail
    with pytest.raises(CaptureError, match="not enough memory for a CUDA graph: cudaErrorMemoryAllocation"):
        own._allocate(512)


def test_new_memory_is_noted(cupy, log):
    own = CupyGraphs(0)
    with device_log.recording() as taken, own.watching():
        ((_, allocate),) = (words for words in log if words[0] == "allocator")
        assert allocate(5).size == 5
    assert taken == [device_log.Record("memory", "new", (4096, 5))]
    assert log[-1] == ("allocator", None)


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)])
def test_buffers_lie_in_memory_as_what_they_are_for(axes, cupy, monkeypatch):
    own = CupyGraphs(0)
    array = np.arange(2 * 3 * 4 * 5, dtype=np.float16).reshape(2, 3, 4, 5).transpose(axes)
    buffer = own.empty_like(array)
    assert (buffer.shape, buffer.dtype, buffer.strides) == (array.shape, array.dtype, array.strides)
    sent = []
    monkeypatch.setattr(own._launcher, "upload", lambda source, target: sent.append((source.copy(), target)))
    own.copy(array, buffer)
    ((found, target),) = sent
    assert target is buffer
    assert found.tobytes() == np.arange(120, dtype=np.float16).tobytes()
    own.copy(array[:0], own.empty_like(array[:0]))
    assert len(sent) == 1


class OnDevice:
    """An array of a device: a stand-in that knows where it lies, and writes down how it is copied into."""

    def __init__(self, array, log):
        self._array, self._log = array, log
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.size, self.ndim, self.nbytes, self.flags = array.size, array.ndim, array.nbytes, array.flags
        self.data = types.SimpleNamespace(
            ptr=array.ctypes.data, copy_from_device_async=lambda source, size: log.append(("memory", source.ptr, size))
        )

    def transpose(self, order):
        return OnDevice(self._array.transpose(order), self._log)

    def __setitem__(self, index, value):
        self._log.append(("kernel", value._array.shape))


@pytest.mark.parametrize("channels", [3, 4])
def test_images_of_a_device_are_copied_at_once(channels, cupy, log):
    """Batches of a loader, (N, C, H, W) in the order of (N, H, W, C), into the input of a captured step."""
    own = CupyGraphs(0)
    images = np.zeros((2, 8, 8, channels), np.float16).transpose(0, 3, 1, 2)
    target = OnDevice(own.empty_like(images), log)
    assert target.strides == images.strides
    source = OnDevice(images, log)
    own.copy(source, target)
    assert log == [("memory", source.data.ptr, images.nbytes)]


SOURCES = [
    np.zeros((2, 8, 8, 4), np.float16).transpose(0, 3, 1, 2)[:, :3],  # gaps
    np.zeros((2, 3, 8, 8), np.float16),  # another order
    np.zeros((2, 8, 8, 3), np.float32).transpose(0, 3, 1, 2),
]


@pytest.mark.parametrize("source", SOURCES)
def test_what_lies_in_memory_otherwise_is_copied_by_a_kernel(source, cupy, log):
    own = CupyGraphs(0)
    target = OnDevice(np.zeros((2, 8, 8, 3), np.float16).transpose(0, 3, 1, 2), log)
    own.copy(OnDevice(source, log), target)
    assert log == [("kernel", (2, 3, 8, 8))]


def test_a_fetched_number_is_copied_without_waiting(cupy, log):
    memory = []
    data = types.SimpleNamespace(
        device_id=0, copy_to_host_async=lambda address, size, stream: memory.append((address, size, stream))
    )
    array = types.SimpleNamespace(nbytes=4, dtype=np.dtype(np.float32), data=data)
    fetched = transfers._Copied(array)
    ((address, size, stream),) = memory
    assert (size, stream) == (4, Stream.current)
    assert not fetched.done
    fetched._value[...] = 2.5
    assert fetched._value.ctypes.data == address
    assert fetched.value == 2.5
    assert [words[0] for words in log] == ["record", "wait for event"]
    assert list(transfers._under_way) == [fetched]
    fetched._event.done = True
    other = transfers._Copied(array)
    assert list(transfers._under_way) == [other]
