"""The stand-in device whose captured graphs run on the host: what they do is what the same calls do at once."""

import functools
import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec import backends
from mixprec.backends import device_log
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.geometry import Convolution
from mixprec.dtypes import BFLOAT16
from tests.cases import tries
from tests.stand_ins import graph_array, graph_work, update_twin
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


# --- random programs

# Each takes two float32 arrays of SHAPE, which may be views of what others use, and returns one more, or None if it
# changes the first.
OPERATIONS = {
    "add": lambda a, b: a + b,
    "multiply and add": lambda a, b: a * 0.5 + b * np.float32(3),
    "tanh": lambda a, b: np.tanh(a),
    "add in place": lambda a, b: a.__iadd__(b) is None or None,
    "out": lambda a, b: np.subtract(a, b, out=a) is None or None,
    "where": lambda a, b: np.where(a > b, a, 0.25),
    "where to where": lambda a, b: np.multiply(a, 2, out=a, where=b > 0) is None or None,
    "sum": lambda a, b: a - b.sum(axis=1, keepdims=True),
    "mean of all": lambda a, b: a - b.mean(),
    "float16": lambda a, b: a.astype(np.float16).astype(np.float32),
    "bfloat16": lambda a, b: (a.astype(BFLOAT16) + b.astype(BFLOAT16)).astype(np.float32),
    "other order": lambda a, b: a.T.copy().T,
    "reshape of another order": lambda a, b: a.T.reshape(SHAPE),
    "from behind": lambda a, b: a[::-1],
    "rows": lambda a, b: a.__setitem__(slice(None, 2), b[2:]),
    "an element": lambda a, b: a.__setitem__((1, 2), b[0, 1]),
    "all": lambda a, b: a.__setitem__(..., b),
    "fill": lambda a, b: a.fill(0.5),
    "like": lambda a, b: np.zeros_like(a) + np.full_like(b, 2),
    "concatenate": lambda a, b: np.concatenate([a[:1], b[1:]]),
    "stack": lambda a, b: np.stack([a, b])[0],
    "largest": lambda a, b: a * b.argmax(axis=1).astype(np.float32)[:, None],
    "in another place": lambda a, b: a[np.argsort(b[:, 0])],
    "matmul": lambda a, b: (a @ b.T) @ a,
    "maximum and clip": lambda a, b: np.clip(np.maximum(a, b), -1, 1),
    "broadcast": lambda a, b: np.broadcast_to(a[0], SHAPE) * b,
    "split": lambda a, b: np.concatenate(np.split(a, 2, axis=1)[::-1], axis=1),
    "two results": lambda a, b: np.divmod(a, b)[1],
    "copyto": lambda a, b: np.copyto(a, b),
    "add at": lambda a, b: np.add.at(a, (slice(None), 1), b[:, 0]),
    "sort": lambda a, b: a.sort(axis=0),
    "power of an element": lambda a, b: a * b[0, 0],
    "the kernel cast": lambda a, b: _primitives(a).cast(_primitives(a).cast(_contiguous(a), np.float16), np.float32),
    "the kernel dropout": lambda a, b: _primitives(a).dropout(_contiguous(a), 0.5, _key(a)),
    "the plan of relu": lambda a, b: _primitives(a).relu(_contiguous(a)),
    "nothing": lambda a, b: np.empty_like(a) is None or None,
}
_states = {}


def _primitives(array):
    return backends.primitives_of(array)


def _contiguous(array):
    return array.copy(order="C")


def _key(array):
    return _primitives(array).dropout_key(_states[type(array)])


def run(program, x, state):
    """Runs operations on ``x``, ``state`` and what the ones before have returned, of which some is dropped."""
    alive = [x, state]
    for name, first, second, dropped in program:
        result = OPERATIONS[name](alive[first % len(alive)], alive[second % len(alive)])
        if result is not None:
            alive.append(result)
        if dropped and len(alive) > 3:
            del alive[2 + first % (len(alive) - 2)]
    return alive[2:]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9), st.booleans()),
        min_size=1,
        max_size=15,
    )
)
@settings(max_examples=tries(40))
def test_random_programs(cuda, program):
    """Captured once and launched three times with other inputs; at once; and by NumPy."""
    on_host, at_once, in_graph = numbers(0), graph_array.array(numbers(0)), graph_array.array(numbers(0))
    buffer = cuda.graphs.empty_like(on_host)
    with cuda.graphs.on_stream():  # plans are built, and workspaces made
        run_with(cuda, program, graph_array.array(numbers(9)), graph_array.array(numbers(0)), 0)
        reads = GraphArray.reads
        seed = _states[GraphArray] = cuda.new_random_state(0)
        graph, found = cuda.graphs.capture(lambda: run(program, buffer, in_graph))
        np.testing.assert_array_equal(graph_array.receive(in_graph), numbers(0))  # nothing has run
        for step in range(3):
            x = numbers(step + 1)
            wanted = run_with(cuda, program, x.copy(), on_host, step)
            others = run_with(cuda, program, graph_array.array(x), at_once, step)
            cuda.graphs.copy(x, buffer)
            seed[1] = step
            graph.launch()
            for array, other, expected in zip(found, others, wanted, strict=True):
                same(other, expected)
                same(array, expected)
            same(at_once, on_host)
            same(in_graph, on_host)
    assert GraphArray.reads == reads


def run_with(cuda, program, x, state, counter):
    before = dict(_states)
    _states[type(x)] = _primitives(x).new_random_state(0)
    _states[type(x)][1] = counter
    try:
        with np.errstate(all="ignore"):
            return run(program, x, state)
    finally:
        _states.update(before)


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


def test_memory_that_is_freed_while_capturing_is_used_again(cuda):
    x = graph_array.array(numbers(0))
    addresses = []

    def function():
        for _ in range(3):
            once_more = x + 1
            addresses.append(once_more.ctypes.data)
            del once_more
        return np.exp(x), np.exp(-x)

    graph, found = captured(cuda, function)
    assert addresses[0] == addresses[1] == addresses[2] == found[0].ctypes.data != found[1].ctypes.data
    launched(cuda, graph)
    same(found[0], np.exp(numbers(0)))
    same(found[1], np.exp(-numbers(0)))


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


def test_a_graph_keeps_its_own_memory(cuda):
    """Nobody else gets it, whether somebody holds the arrays or not."""
    x, state = graph_array.array(numbers(0)), graph_array.array(numbers(0))

    def function():
        state[...] = (x + 1) * 2

    graph, _ = captured(cuda, function)
    others = [graph_array.array(numbers(step)) for step in range(20)]
    launched(cuda, graph)
    same(state, (numbers(0) + 1) * 2)
    for step, other in enumerate(others):
        same(other, numbers(step))


def test_numbers_are_frozen_and_arrays_are_not(cuda):
    x, factor, frozen = graph_array.array(numbers(0)), graph_array.array(np.array(2, np.float32)), np.array(2.0)
    number = 2.0
    graph, found = captured(cuda, lambda: (x * factor, x * number, x * frozen))
    number, frozen[...], factor[...] = 3.0, 3, 3
    launched(cuda, graph)
    same(found[0], numbers(0) * np.float32(3))
    same(found[1], numbers(0) * 2)
    same(found[2], (numbers(0) * np.array(2.0)))


def test_shapes_of_arrays_and_numbers_about_them_are_known(cuda):
    x = graph_array.array(numbers(0))

    def function():
        parts = [row * (place + 1) for place, row in enumerate(x)]
        assert (np.shape(x), x.shape, np.ndim(x), len(parts), x[1, 2].shape) == (SHAPE, SHAPE, 2, 4, ())
        assert np.result_type(x, np.float64) == np.float64
        return np.stack(parts), np.split(x, [2]), x[1, 2]

    graph, (stacked, parts, element) = captured(cuda, function)
    launched(cuda, graph)
    same(stacked, numbers(0) * np.arange(1, 5, dtype=np.float32)[:, None])
    same(parts[1], numbers(0)[2:])
    same(element, numbers(0)[1, 2])
    assert np.shares_memory(parts[0], x)


def test_conversions_stay_on_the_device(cuda):
    """Only on the stream: Chainer's ``xp.asarray`` is meant, and ``xp`` is NumPy here."""
    x = graph_array.array(numbers(0))
    with cuda.graphs.on_stream(), cuda.graphs.on_stream():
        assert np.asarray(x) is x
        assert type(np.asarray(x.mean(), dtype=np.float64)) is GraphArray
        assert type(np.array(x)) is GraphArray
        assert type(np.asarray([1, 2])) is np.ndarray
    assert type(np.asarray(x)) is np.ndarray


# --- what cannot be captured

READS = {
    "bool": lambda x: bool(x.sum() > 0),
    "if": lambda x: 1 if x[0, 0] > 0 else 2,
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x[0, 0]),
    "item": lambda x: x[0, 0].item(),
    "format": lambda x: f"{x.sum():.3f}",
    "tolist": lambda x: x.tolist(),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: np.nonzero(x),
    "method nonzero": lambda x: x.nonzero(),
    "in": lambda x: 3.0 in x,
    "array_equal": lambda x: np.array_equal(x, x),
    "a number of Python": lambda x: np.array_equiv(x, x),
    "into the host": lambda x: np.add(x, x, out=np.empty(SHAPE, np.float32)),
}
UPLOADS = {
    "setitem": lambda x: x.__setitem__(..., numbers(3)),
    "in place": lambda x: np.add(x, numbers(3), out=x),
    "operand": lambda x: x + numbers(3),
    "function": lambda x: np.where(x > 0, x, numbers(3)),
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


def test_an_upload_of_the_launcher(cuda):
    target = graph_array.new((64,), np.uint8)
    source = np.arange(16, dtype=np.uint8)
    with device_log.recording() as taken, cuda.graphs.watching():
        cuda.launcher.upload(source, target)
    assert [(note.kind, note.name) for note in taken] == [("upload", "table")]
    np.testing.assert_array_equal(graph_array.receive(target)[:16], source)
    with pytest.raises(CaptureError, match="frozen"):
        captured(cuda, lambda: cuda.launcher.upload(source, target))


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


def test_products_and_inverses_of_matrices_are_captured(cuda):
    rows = graph_array.array(numbers(0, (99, 70), np.float16))
    shifts = graph_array.array(np.ones(1, np.float32))

    def function():
        moments, inverse = (cuda.launcher.full((1, 70, 70), 0, np.float32) for _ in range(2))
        cuda.row_moments(rows, moments)
        cuda.inverses(moments, shifts, inverse)
        return cuda.products(moments, inverse)

    with pytest.raises(CaptureError, match="has no handle yet"):
        captured(cuda, function)
    expected = graph_array.receive(function())
    with cuda.graphs.on_stream():
        function()
    graph, found = captured(cuda, function)
    assert np.isnan(graph_array.receive(found)).all()
    launched(cuda, graph)
    same(found, expected)
    exact = graph_array.receive(rows).astype(np.float64)
    np.testing.assert_allclose(expected[0], np.eye(70) - np.linalg.inv(exact.T @ exact + np.eye(70)), atol=1e-3)


def test_an_error_of_the_function_goes_on(cuda):
    def function():
        raise ZeroDivisionError

    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError):
            captured(cuda, function)
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert not graph_work.is_capturing()
    same(graph_array.array(numbers(0)) + 1, numbers(0) + 1)


def test_launches_and_new_memory_are_noted(cuda):
    x, w = (graph_array.array(numbers(seed, (8, 8), np.float16)) for seed in range(2))
    cuda.linear(x, w)
    with device_log.recording() as taken, cuda.graphs.watching():
        y = cuda.cast(cuda.linear(x, w), np.float32)
    product, plan, result, kernel = taken
    assert (plan.kind, kernel.kind, kernel.name) == ("cudnn", "kernel", "cast")
    assert product == ("memory", "new", (plan.arguments[-1], 128), "", "")
    assert result == ("memory", "new", (y.ctypes.data, 256), "", "")
    assert kernel.arguments[1:3] == (product.arguments[0], result.arguments[0])


def test_the_same_work_gets_the_same_memory(cuda):
    x = graph_array.array(numbers(0))

    def addresses():
        with device_log.recording() as taken, cuda.graphs.watching():
            np.concatenate([x * 2 + 1, np.exp(x)]).sum(axis=0)
        return [note.arguments for note in taken]

    assert addresses() == addresses()


def test_buffers(cuda):
    """They lie in memory as what they are for."""
    for source in (numbers(0, (2, 3, 4, 5)).transpose(0, 3, 1, 2), numbers(1)[::2].T, np.array(3)):
        for array in (source, graph_array.array(source)):
            buffer = cuda.graphs.empty_like(array)
            assert (buffer.shape, buffer.dtype, type(buffer)) == (source.shape, source.dtype, GraphArray)
            assert buffer.strides == np.empty_like(source).strides
            cuda.graphs.copy(array, buffer)
            same(buffer, source)


# --- the batched update


@pytest.mark.parametrize("hooks", ["none", "decay and clipping"])
def test_a_step_of_the_batched_update(cuda, hooks):
    """Of all rules, captured by hand: gradients and the loss scale change in place, and two steps are skipped."""
    at_once, in_graph = (
        update_twin.Twin(
            cuda.launcher,
            graph_array.array,
            graph_array.receive,
            update_twin.of_all_rules(),
            update_twin.HOOKS[hooks],
        )
        for _ in range(2)
    )
    factor = graph_array.array(np.array(1, np.float32))

    def step(both):
        both.batch.check([factor] * len(both.entries))
        both.batch.update()

    gradients = at_once.gradients()
    for both in (at_once, in_graph):
        both.set_gradients(gradients)
    for number in range(8):
        gradients = at_once.gradients(8)
        if number in (2, 5):
            gradients[number][0] = np.inf
        factor.fill(2.0**number)
        for both in (at_once, in_graph):
            for entry, gradient in zip(both.entries, gradients, strict=True):
                entry.param.grad[...] = graph_array.array(gradient)
        before = in_graph.masters()
        step(at_once)
        if number < 3:
            step(in_graph)
        else:
            if number == 3:
                graph, _ = captured(cuda, lambda: step(in_graph))
            launched(cuda, graph)
        for found, expected in zip(in_graph.everything(), at_once.everything(), strict=True):
            assert found.tobytes() == expected.tobytes()
        moved = any(a.tobytes() != b.tobytes() for a, b in zip(in_graph.masters(), before, strict=True))
        assert moved == (number not in (2, 5))
    assert at_once.batch.settle() == in_graph.batch.settle() == 6
