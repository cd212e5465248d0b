"""The stand-in for a device that writes down what it is asked, and the launches of networks by hand counted with it."""

import inspect

import numpy as np
import pytest

from benchmarks.recording_device import null_device
from mixprec import backends
from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.cudnn.settings import Settings
from mixprec.backends.device_log import recording
from mixprec.backends.launch import CupyLauncher
from mixprec.graph_capture.cuda_graphs import CupyGraphs, Graph, graphs_of
from tests.backends.cudnn.plan_variants import variants
from tests.stand_ins import fake_cudnn

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _installed():
    null_device.install()


def _asked(notes):
    """What was asked of the device beside memory."""
    return [note for note in notes if note.kind != "memory"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_it_supports_what_the_other_stand_in_for_cudnn_does(dtype):
    """Which test_plans.py compares with cuDNN."""
    asked = variants(dtype)
    supported = {name for name, operation in asked.items() if null_device.CudnnContext().supports(operation)}
    assert supported == {name for name, operation in asked.items() if _has_engine(operation)}
    assert supported < set(asked)


def _has_engine(operation):
    try:
        engines = Engines(fake_cudnn, operation, Settings(autotune="off"), sm_version=90)
    except NoEngine:
        return False
    return next(engines.usable(), None) is not None


CLASSES = [(null_device.Launcher, CupyLauncher), (null_device.Graphs, CupyGraphs), (null_device.Graph, Graph)]


@pytest.mark.parametrize(("ours", "real"), CLASSES)
def test_they_can_what_those_of_cupy_can(ours, real):
    for name, value in vars(real).items():
        if not name.startswith("_") and inspect.isfunction(value):
            assert inspect.signature(getattr(ours, name)) == inspect.signature(value), name


NOTED = [
    (lambda x: x.transpose(0, 2, 1).astype("f4", copy=False)[0, 1, 2], []),
    (lambda x: [np.empty_like(x), x.ravel(), *np.split(x, 2)], []),
    (lambda x: x.sum(), ["array"]),
    (lambda x: np.concatenate([x, x]), ["array"]),
    (lambda x: x.__setitem__(0, 1), ["array"]),
    (lambda x: x.__iadd__(np.float32(1)), ["array"]),
    (lambda x: bool((x > 0).all()), ["array", "array", "read"]),
    (lambda x: x.T.reshape(-1), ["array"]),
    (lambda x: x[:, [0, 2]], ["upload", "array"]),
    (lambda x: x[x > 0], ["array", "read", "array"]),
    (lambda x: np.copyto(x, 0), ["array"]),
    (lambda x: np.add.at(x, 0, 1), ["array"]),
    (lambda x: np.sum(x, out=null_device.array(np.zeros(()))), ["upload", "array"]),
    (lambda x: np.add(x, 1, out=np.ones((2, 3, 4))), ["read", "array"]),
    (lambda x: np.array_equal(x, x), ["read"]),
    (lambda x: x + np.ones(4), ["upload", "array"]),
    (lambda x: x.__setitem__((0, 0), [1, 2, 3, 4]), ["upload"]),
]


@pytest.mark.parametrize(("do", "expected"), NOTED)
def test_what_a_device_would_launch_or_hand_over_is_noted(do, expected):
    x = null_device.array(np.ones((2, 3, 4), np.float32))
    with recording() as notes:
        do(x)
    assert [note.kind for note in _asked(notes)] == expected


def test_notes_have_addresses_and_numbers():
    x = null_device.array(np.ones((2, 3), np.float32))
    with recording() as notes:
        y = x[:, 1:] * 0.5
        x[0, 1:] = y[1]
    whole, part, new = ("float32", (2, 3), (12, 4)), ("float32", (2, 2), (12, 4)), ("float32", (2, 2), (8, 4))
    row = "float32", (2,), (4,)
    assert [(note.kind, note.name, note.arguments) for note in notes] == [
        ("memory", "new", (y.ctypes.data, 16)),
        ("array", "multiply", (x.ctypes.data + 4, part, 0.5, y.ctypes.data, new)),
        ("array", "setitem", (x.ctypes.data, whole, 0, slice(1, None), y.ctypes.data + 8, row)),
    ]


def test_memory_is_given_out_again_when_the_last_view_is_gone():
    def address_of_new(size):
        return null_device.Launcher().empty((size,), np.int8).ctypes.data  # gone at once

    x = null_device.Launcher().empty((3, 50), np.float32)
    address = x.ctypes.data
    assert address % 512 == 0
    rows = x[1:]
    del x
    assert address_of_new(600) != address
    del rows
    assert address_of_new(512) != address  # another size
    assert address_of_new(1024) == address_of_new(513) == address


def test_a_graph_repeats_what_was_noted_with_memory_of_its_own():
    x = null_device.array(np.ones((2, 4, 4, 8), np.float16))
    graphs = graphs_of(x)
    before = graphs.pool_bytes
    with recording() as outer:
        graph, y = graphs.capture(lambda: backends.primitives_of(x).global_average_pool(x) * 2)
    assert outer == []
    assert graphs.pool_bytes > before
    with recording() as notes:
        graph.launch()
    assert [(note.kind, note.name, note.primitive) for note in notes] == [
        ("kernel", "sum_columns", "global_average_pool"),
        ("array", "multiply", ""),
    ]
    assert notes[1].arguments[-2] == y.ctypes.data


NOT_CAPTURED = [
    (lambda x: float(x.sum()), "the current stream is capturing, so D2H transfers are disallowed"),
    (lambda x: x + np.ones(3), "the current stream is capturing, so H2D transfers are disallowed"),
    (lambda x: null_device.Launcher().upload(np.ones(1, np.uint8), x), "H2D transfers are disallowed"),
]


@pytest.mark.parametrize(("do", "text"), NOT_CAPTURED)
def test_a_capture_ends_with_what_cuda_cannot_capture(do, text):
    x = null_device.array(np.ones(3))
    with pytest.raises(RuntimeError, match=text):
        graphs_of(x).capture(lambda: do(x))
    do(x)
