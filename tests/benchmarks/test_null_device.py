"""The stand-in for a device that writes down what it is asked, and the launches of networks by hand counted with it."""

import copy
import gc
import inspect
import pickle

import chainer
import chainer.functions as F
import numpy as np
import pytest

from benchmarks import null_device
from benchmarks.null_device.null_memory import Pool
from benchmarks.step import by_hand
from mixprec import backends, functions
from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.cudnn.settings import Settings
from mixprec.backends.device_log import recording
from mixprec.backends.geometry import Convolution
from mixprec.backends.launch import CupyLauncher
from mixprec.functions import widening
from mixprec.graph_capture.cuda_graphs import CupyGraphs, Graph, graphs_of
from tests.backends.cudnn.plan_variants import variants
from tests.stand_ins import fake_cudnn

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _installed():
    null_device.install()


def _asked(notes):
    """What was asked of the device but for memory."""
    return [note for note in notes if note.kind != "memory"]


def test_primitives_are_those_of_the_cuda_backend_and_compute_nothing():
    x = null_device.array(np.ones((2, 4, 4, 8), np.float16))
    with recording() as notes:
        y = backends.primitives_of(x).global_average_pool(x)
    assert (y.shape, y.dtype, type(y)) == ((2, 8), np.float16, null_device.Array)
    assert [(note.kind, note.arguments[1:3]) for note in _asked(notes)] == [("kernel", (x.ctypes.data, y.ctypes.data))]


def test_cudnn_is_asked_for_operations_with_addresses():
    x, w = (null_device.array(np.ones(shape, "f2")) for shape in ((2, 3, 3, 8), (16, 1, 1, 8)))
    with recording() as notes:
        y, sums = backends.primitives_of(x).conv_fprop(x, w, Convolution(), statistics=True)
    (note,) = [note for note in notes if note.kind == "cudnn"]
    operation, *addresses = note.arguments
    assert note.name == operation.kind == "conv_fprop"
    assert len(addresses) == len(operation.tensors)
    places = dict(zip((tensor.name for tensor in operation.tensors), addresses, strict=True))
    assert places["x"] == x.ctypes.data
    assert places["y"] == y.ctypes.data
    assert places["sum"] == sums.ctypes.data


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


@pytest.mark.parametrize(
    ("do", "expected"),
    [
        (lambda x: x + x, ["array"]),
        (lambda x: x.transpose(0, 2, 1), []),
        (lambda x: x.reshape(-1)[2:4], []),
        (lambda x: x.sum(), ["array"]),
        (lambda x: x.astype("f2"), ["array"]),
        (lambda x: x.astype("f4", copy=False), []),
        (lambda x: np.empty_like(x), []),
        (lambda x: x.copy(), ["array"]),
        (lambda x: x.fill(0), ["array"]),
        (lambda x: np.zeros_like(x), ["array"]),
        (lambda x: np.concatenate([x, x]), ["array"]),
        (lambda x: x.__setitem__(0, 1), ["array"]),
        (lambda x: x.__iadd__(1), ["array"]),
        (lambda x: float(x[0, 0, 0]), ["read"]),
        (lambda x: bool((x > 0).all()), ["array", "array", "read"]),
        (lambda x: x.tolist(), ["read"]),
        (lambda x: x[0, 1, 2], []),
        (lambda x: x.T.reshape(-1), ["array"]),
        (lambda x: x.ravel(), []),
        (lambda x: x.argmax(axis=1), ["array"]),
        (lambda x: x.dot(x[0].T), ["array"]),
        (lambda x: x.sort(), ["array"]),
        (lambda x: x[:, [0, 2]], ["upload", "array"]),
        (lambda x: x[x > 0], ["array", "read", "array"]),
        (lambda x: x[:0] + 1, []),
        (lambda x: np.copyto(x, 0), ["array"]),
        (lambda x: np.add.at(x, 0, 1), ["array"]),
        (lambda x: np.split(x, 2), []),
        (lambda x: np.sum(x, out=null_device.array(np.zeros(()))), ["upload", "array"]),
        (lambda x: np.add(x, 1, out=np.ones((2, 3, 4))), ["read", "array"]),
        (lambda x: np.array_equal(x, x), ["read"]),
        (lambda x: repr(x), ["read"]),
        (lambda x: pickle.dumps(x), ["read"]),
        (lambda x: copy.deepcopy(x), ["array"]),
        (lambda x: x + np.ones(4), ["upload", "array"]),
        (lambda x: x + np.float32(2), ["array"]),
        (lambda x: x + np.array(2), ["array"]),
        (lambda x: np.where(x, np.ones(4), 0), ["upload", "array"]),
        (lambda x: x.__setitem__(0, np.ones(4)), ["upload"]),
        (lambda x: x.__setitem__((0, 0), [1, 2, 3, 4]), ["upload"]),
    ],
)
def test_what_a_device_would_launch_or_hand_over_is_noted(do, expected):
    x = null_device.array(np.ones((2, 3, 4), np.float32))
    with recording() as notes:
        do(x)
    assert [note.kind for note in _asked(notes)] == expected


def test_notes_have_addresses_and_numbers():
    x = null_device.array(np.ones((2, 3), np.float32))
    with recording() as notes:
        y = x[:, 1:] * 0.5
        y -= x[:, :2]
        x[0, 1:] = y[1]
        z = np.concatenate([x, y], axis=1)
    small, large = ("float32", (2, 2)), ("float32", (2, 3))
    assert [(note.kind, note.name, note.arguments) for note in notes] == [
        ("memory", "new", (y.ctypes.data, 16)),
        ("array", "multiply", (x.ctypes.data + 4, (*small, (12, 4)), 0.5, y.ctypes.data, (*small, (8, 4)))),
        (
            "array",
            "subtract",
            (*(y.ctypes.data, (*small, (8, 4)), x.ctypes.data, (*small, (12, 4))), "out", y.ctypes.data)
            + ((*small, (8, 4)),),
        ),
        (
            "array",
            "setitem",
            (*(x.ctypes.data, (*large, (12, 4)), 0, slice(1, None)), y.ctypes.data + 8, ("float32", (2,), (4,))),
        ),
        ("memory", "new", (z.ctypes.data, 40)),
        (
            "array",
            "concatenate",
            (*(x.ctypes.data, (*large, (12, 4)), y.ctypes.data, (*small, (8, 4)), "axis", 1), z.ctypes.data)
            + (("float32", (2, 5), (20, 4)),),
        ),
    ]


@pytest.mark.parametrize(
    "do",
    [
        lambda x: x * 2 + x.sum(axis=0),
        lambda x: x.transpose(0, 2, 1) + 1,
        lambda x: x[..., ::-1].astype("f2"),
        lambda x: np.where(x > 3, x, -x),
        lambda x: np.stack(np.split(x, 2)),
        lambda x: x.mean(axis=(0, 1)),
        lambda x: np.divmod(x, 3)[1],
        lambda x: x.argmax(),
        lambda x: x.reshape(4, -1)[[1, 0], 1],
        lambda x: np.add.reduce(x, axis=2, keepdims=True),
        lambda x: x.T.copy(),
    ],
)
def test_what_numpy_computes_is_right_and_in_c_order(do):
    value = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found, expected = do(null_device.array(value)), np.asarray(do(value))
    assert type(found) is null_device.Array
    assert found.flags.c_contiguous
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.view(np.ndarray), expected)


# --- memory


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


def test_the_oldest_free_block_goes_first():
    pool = Pool()
    blocks = [pool.allocate(1) for _ in range(3)]
    addresses = [block.address for block in blocks]
    del blocks[0], blocks[1], blocks[0]
    assert pool.bytes == 3 * 512
    again = [pool.allocate(512) for _ in range(3)]
    assert [block.address for block in again] == addresses


def test_a_device_is_empty_when_it_is_installed():
    x = null_device.array(np.ones(3))
    before = null_device.Array.memory
    null_device.install()
    assert null_device.Array.memory is not before
    np.testing.assert_array_equal(x.view(np.ndarray), np.ones(3))  # its memory is still there


# --- the launcher and graphs


@pytest.mark.parametrize(
    ("ours", "real"),
    [(null_device.Launcher, CupyLauncher), (null_device.Graphs, CupyGraphs), (null_device.Graph, Graph)],
)
def test_they_can_what_those_of_cupy_can(ours, real):
    for name, value in vars(real).items():
        if not name.startswith("_"):
            assert hasattr(ours, name), name
            if inspect.isfunction(value):
                assert inspect.signature(getattr(ours, name)) == inspect.signature(value), name


def test_a_launcher_looks_at_arrays():
    launcher = null_device.Launcher()
    x, host = launcher.full((2, 3), 1, np.float32), np.ones(3)
    assert launcher.addresses([x, x.T]) == [x.ctypes.data] * 2
    assert launcher.addresses([x, host]) is None
    assert (launcher.holds(x), launcher.holds(host)) == (True, False)
    assert launcher.orders([x, x]) == ()
    assert launcher.orders([x, x.T]) == ([True, False], [(4, 12)])
    assert launcher.orders([host]) is None
    assert launcher.contiguous(x.T).flags.c_contiguous


def test_an_upload_of_a_table_is_not_one_of_the_user():
    launcher = null_device.Launcher()
    target = launcher.full(8, 0, np.uint8)
    with recording() as notes:
        launcher.upload(np.arange(4, dtype=np.uint8), target)
        null_device.array(np.ones(2))
    assert [(note.name, note.arguments[1]) for note in notes if note.kind == "upload"] == [("table", 4), ("array", 16)]
    assert notes[0].arguments[0] == target.ctypes.data
    assert target.view(np.ndarray).tolist() == [0, 1, 2, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("send", [np.array, null_device.array])
def test_buffers_lie_in_memory_as_what_is_copied_into_them(send):
    images = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 4, 4, 3).transpose(0, 3, 1, 2)
    graphs = graphs_of(null_device.array(images))
    buffer = graphs.empty_like(send(images))
    assert (buffer.strides, type(buffer)) == (images.strides, null_device.Array)
    graphs.copy(send(images), buffer)
    np.testing.assert_array_equal(buffer.view(np.ndarray), images)


def test_a_graph_repeats_what_was_noted_with_memory_of_its_own():
    x = null_device.array(np.ones((2, 4, 4, 8), np.float16))
    graphs = graphs_of(x)
    before = graphs.pool_bytes
    with recording() as outer:
        graph, y = graphs.capture(lambda: backends.primitives_of(x).global_average_pool(x) * 2)
    assert outer == []
    assert graphs.pool_bytes > before
    for _ in range(2):
        with recording() as notes:
            graph.launch()
        assert [(note.kind, note.name, note.primitive) for note in notes] == [
            ("kernel", "sum_columns", "global_average_pool"),
            ("array", "multiply", ""),
        ]
        assert notes[1].arguments[-2] == y.ctypes.data


@pytest.mark.parametrize(
    ("do", "text"),
    [
        (lambda x: float(x.sum()), "the current stream is capturing, so D2H transfers are disallowed"),
        (lambda x: x[x > 0], "the current stream is capturing, so D2H transfers are disallowed"),
        (lambda x: x + np.ones(3), "the current stream is capturing, so H2D transfers are disallowed"),
        (null_device.array, "the current stream is capturing, so H2D transfers are disallowed"),
        (lambda x: null_device.Launcher().upload(np.ones(1, np.uint8), x), "H2D transfers are disallowed"),
    ],
)
def test_a_capture_ends_with_what_cuda_cannot_capture(do, text):
    x = null_device.array(np.ones(3))
    graphs = graphs_of(x)
    with pytest.raises(RuntimeError, match=text):
        graphs.capture(lambda: do(x))
    assert gc.isenabled()
    do(x)


def test_conversions_leave_arrays_on_the_device_on_the_stream_of_graphs():
    x = null_device.array(np.ones((2, 3)))
    with graphs_of(x).on_stream(), recording() as notes:
        with graphs_of(x).on_stream():
            assert np.asarray(x) is x
        found = np.array(x), np.asarray(x, np.float32), np.ascontiguousarray(x.T)
        assert type(np.asarray([1])) is np.ndarray
    assert {type(array) for array in found} == {null_device.Array}
    assert [note.name for note in _asked(notes)] == ["array", "asarray", "ascontiguousarray"]
    assert type(np.asarray(x)) is np.ndarray


def test_stochastic_depth_of_a_block_is_two_small_launches_more():
    """A key and the factors of its images; the batch normalization, the addition and the ReLU stay one primitive."""
    counts = []
    for ratio in (0.0, 0.3):
        functions.reset_dropout()
        x, add = (null_device.array(np.ones((4, 6, 6, 8), np.float16)) for _ in range(2))
        gamma, beta = (null_device.array(np.ones(8, np.float32)) for _ in range(2))
        functions.stochastic_depth(x, 0.5)  # makes the state
        with recording() as notes:
            y = functions.batch_normalization(x, gamma, beta, add=add, relu=True, stochastic_depth=ratio)
            y.grad = null_device.array(np.ones(y.shape, np.float16))
            y.backward()
        counts.append([note.name for note in _asked(notes)])
    functions.reset_dropout()
    plain, dropping = counts
    assert [name for name in dropping if name not in plain and not name.startswith("batch_norm")] == [
        "next_key",
        "row_factors",
    ]
    assert not {"add", "scale_rows"} & set(dropping)


def test_functions_of_chainer_are_seen_as_on_a_device():
    widening.install()  # what convert() does to float16 on NumPy
    x = chainer.Variable(null_device.array(np.ones((2, 3), np.float16)))
    with recording() as notes:
        y = F.add(x, x)
    assert type(y.array) is null_device.Array
    assert [note.name for note in _asked(notes)] == ["add"]


def test_dropout_with_its_random_state():
    functions.reset_dropout()
    x = null_device.array(np.ones((4, 8), np.float16))
    with recording() as notes:
        functions.dropout(x)
    functions.reset_dropout()
    # Once the state, its counter of 0; then a key and a launch for each dropout.
    assert [(note.kind, note.name) for note in _asked(notes)] == [
        ("array", "fill"),
        ("array", "fill"),
        ("kernel", "next_key"),
        ("kernel", "dropout"),
    ]


def test_resnet50_needs_390_launches_and_no_conversion_in_its_trunk():
    counts = by_hand.count("resnet50", batch=2, size=64)
    assert counts.total == 390  # as docs say
    assert counts.reads == 0
    found = counts.launches
    # 53, but for the images; the filter of 3 channels becomes one of 4, and its gradient the reverse. Then images and
    # that filter are folded, the gradient unfolded.
    assert (found["conv_fprop"], found["conv_dgrad"], found["conv_wgrad"]) == (56, 52, 56)
    # The two gradients of a block are added by the batch normalization they come to, those of the pooling by none.
    assert (found["batch_norm"], found["batch_norm_backward"], found["add"]) == (2 * 53, 2 * 53, 1)
    assert found["to_nhwc"] == 1  # the images at the entrance
    assert not {"to_nchw", "cast"} & found.keys()
    assert sum(number for name, number in found.items() if name.startswith(by_hand.OTHERS)) <= 4


def test_counts_do_not_depend_on_the_size_of_the_images():
    assert by_hand.count("resnet18", batch=2, size=32) == by_hand.count("resnet18", batch=4, size=96)


def test_a_conversion_in_the_trunk_is_seen(monkeypatch):
    pool = functions.max_pooling_2d

    def there_and_back(x, *arguments, **keywords):
        return functions.to_nhwc(functions.to_nchw(pool(x, *arguments, **keywords)))

    monkeypatch.setattr(functions, "max_pooling_2d", there_and_back)
    found = by_hand.count("resnet18", batch=2, size=32).launches
    assert (found["to_nhwc"], found["to_nchw"]) == (3, 2)
