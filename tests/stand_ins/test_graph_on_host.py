"""The stand-in device whose captured graphs run on the host: what they do is what the same calls do at once."""

import functools
import gc

import numpy as np
import pytest

from mixprec import backends
from mixprec.backends import device_log
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.geometry import Convolution
from tests.stand_ins import graph_array
from tests.stand_ins.graph_array import GraphArray
from tests.stand_ins.graph_on_host import GraphCuda

pytestmark = pytest.mark.slow

SHAPE = 4, 6


@pytest.fixture(scope="module")
def cuda():
    cuda = GraphCuda()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends._OTHERS, GraphArray, cuda)
        yield cuda


def numbers(seed, shape=SHAPE, dtype=np.float32):
    return np.random.RandomState(seed).normal(size=shape).astype(dtype)


def launched(cuda, graph):
    with cuda.graphs.on_stream():
        graph.launch()


def captured(cuda, function):
    with cuda.graphs.on_stream():
        return cuda.graphs.capture(function)


def same(found, expected):
    found = graph_array.receive(found)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found, expected)


# --- what is captured


def test_nothing_is_computed_and_memory_is_poisoned(cuda):
    x, state = graph_array.array(numbers(0)), graph_array.array(numbers(1))
    calls = len(cuda.launcher.launches)

    def function():
        state[...] += x
        state.fill(3)
        return x * 2, cuda.cast(x, np.float16), x.sum()

    graph, found = captured(cuda, function)
    assert len(cuda.launcher.launches) == calls
    np.testing.assert_array_equal(graph_array.receive(state), numbers(1))
    for array in found:
        assert np.isnan(graph_array.receive(array)).all()
    launched(cuda, graph)
    np.testing.assert_array_equal(graph_array.receive(found[0]), numbers(0) * 2)
    np.testing.assert_array_equal(graph_array.receive(state), np.full(SHAPE, 3))


def test_a_graph_that_reads_what_is_gone_is_seen(cuda):
    """What the caller has dropped is NaN, until it is somebody else's."""
    gc.collect()  # or older memory would become free meanwhile, and go to others first
    temporary = graph_array.array(numbers(0))
    graph, found = captured(cuda, functools.partial(np.add, temporary, 1))
    launched(cuda, graph)
    same(found, numbers(0) + 1)
    del temporary
    launched(cuda, graph)
    assert np.isnan(graph_array.receive(found)).all()
    other = graph_array.array(numbers(5))
    launched(cuda, graph)
    same(found, numbers(5) + 1)
    same(other, numbers(5))


# --- what cannot be captured

READS = {
    "bool": lambda x: bool(x.sum() > 0),
    "mask": lambda x: x[x > 0],
    "array_equal": lambda x: np.array_equal(x, x),
    "into the host": lambda x: np.add(x, x, out=np.empty(SHAPE, np.float32)),
}
UPLOADS = {
    "setitem": lambda x: x.__setitem__(..., numbers(3)),
    "operand": lambda x: x + numbers(3),
    "copyto": lambda x: np.copyto(x, numbers(3)),
    "addresses of many arrays": lambda x: np.concatenate(9 * [x]),
}


@pytest.mark.parametrize(
    ("kind", "name"), [*(("read", name) for name in READS), *(("upload", name) for name in UPLOADS)]
)
def test_reads_and_uploads(kind, name, cuda):
    """Are errors in a capture, which CuPy words so; are noted if somebody watches, and counted."""
    function = {"read": READS, "upload": UPLOADS}[kind][name]
    x = graph_array.array(numbers(0))
    text = {"read": "D2H transfers are disallowed", "upload": "H2D transfers are disallowed"}[kind]
    with pytest.raises(RuntimeError, match=f"^the current stream is capturing, so {text}$"):
        captured(cuda, lambda: function(x))
    assert gc.isenabled()
    same(x, numbers(0))
    captured(cuda, lambda: x + 1)  # the next one can be

    reads = GraphArray.reads
    with cuda.graphs.on_stream(), device_log.recording(lambda frame: "a line") as taken:
        function(x)
        assert not taken
        with cuda.graphs.watching():
            function(x)
    found = [note for note in taken if note.kind != "memory"]
    assert {(note.kind, note.line) for note in found} == {(kind, "a line")}
    assert GraphArray.reads == reads + (2 * len(found) if kind == "read" else 0)


def test_plans_and_workspaces_are_made_before(cuda):
    x = graph_array.array(numbers(0, (1, 5, 5, 8), np.float16))
    w = graph_array.array(numbers(1, (8, 3, 3, 8), np.float16))
    convolution = Convolution((1, 1), (1, 1))
    with pytest.raises(CaptureError, match="not built yet"):
        captured(cuda, lambda: cuda.conv_fprop(x, w, convolution))
    expected = graph_array.receive(cuda.conv_fprop(x, w, convolution))
    with pytest.raises(CaptureError, match="workspace"):
        captured(cuda, lambda: cuda.conv_fprop(x, w, convolution))
    with cuda.graphs.on_stream():
        cuda.conv_fprop(x, w, convolution)
    graph, found = captured(cuda, lambda: cuda.conv_fprop(x, w, convolution))
    assert np.isnan(graph_array.receive(found)).all()
    launched(cuda, graph)
    same(found, expected)
