"""Nothing that Python hands to the library can crash it: odd arguments of every function, and memory that overlaps.

A wrong argument is an error before a kernel runs. What is right is written to the outputs only: each array lies between
guards, which stay as they were.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.base.dtypes import BFLOAT16
from mixprec.native.native_library import library
from tests.cases import tries

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native library")

_GUARD = 64


def array(shape, dtype="f4"):
    """Returns an array of small numbers between two guards."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(count + 2 * _GUARD, 0x3A, np.uint8)
    x = memory[_GUARD : _GUARD + count].view(dtype).reshape(shape)
    x[...] = (np.arange(x.size) % 3).reshape(shape)
    return x


def _elementwise():
    f4, f2, u2 = array(100), array(100, "f2"), array(100, "u2")
    yield "convert", (f4, f2)
    yield "convert", (u2, f4)
    yield "add", (f2, array(100, "f2"), array(100, "f2"))
    yield "relu", (f4, array(100))
    yield "relu_backward", (f2, array(100, "f2"), array(100, "f2"))
    yield "dropout", (array(70, "u2"), 0.5, array(2, "u8"), array(70, "u2"))
    yield "transpose", (array((2, 3, 35)), array((2, 35, 4), "f2"), (2, 3, 35), (35, 4))


def _batch_norms():
    for shape, dtype in (((70, 5), "f4"), ((3, 300), "f2"), ((9, 40), "u2")):

        def rows(shape=shape, dtype=dtype):
            return array(shape, dtype)

        def vector(dtype="f4", channels=shape[1]):
            return array(channels, dtype)

        channels = shape[1]
        yield "moments", (rows(), channels, vector("f8"), vector("f8"))
        yield "affine", (rows(), channels, vector(), vector(), rows(), None, None, 1, array(shape, "u1"), rows())
        yield "affine", (rows(), channels, vector(), vector(), rows(), vector(), vector(), 0, None, rows())
        yield "affine", (rows(), channels, None, vector(), None, None, None, 0, None, rows())
        for relu in ((vector(), vector(), None), (None, None, array(shape, "u1"))):
            gradient = (rows(), channels, rows(), *relu)
            yield "gradient_sums", (*gradient, rows(), vector(), None, None, rows(), vector("f8"), vector("f8"))
            products = vector("f8", 2 * channels)
            yield "gradient_sums", (*gradient, rows(), vector(), rows(), vector(), rows(), products, vector("f8"))
            yield "combine", (*gradient, rows(), vector(), vector(), vector(), vector(), rows())


def _poolings():
    for dtype, channels in (("f4", 3), ("f2", 16), ("u2", 33)):
        x, y = (2, 5, 6, channels), (2, 3, 3, channels)
        windows = (*x, 3, 3), (3, 2), (2, 2), (1, 0)
        yield "max_pool", (array(x, dtype), *windows, array(y, dtype), array(y, "u1"))
        yield "max_pool_backward", (array(x, dtype), *windows, array(y, dtype), array(y, "u1"))
        yield "average_pool", (array(x, dtype), *windows, array(y, dtype))
        yield "average_pool_backward", (array(x, dtype), *windows, array(y, dtype))
        yield "global_average_pool", (array(x, dtype), (2, 30, channels), array((2, channels), dtype))


def _convolutions():
    sizes = (2, 7, 6, 3), (4, 3, 3, 3), (1, 2, 1, 0, 1, 1, 1)
    x, w, y = array(sizes[0], "f2"), array(sizes[1], "f2"), array((2, 7, 2, 4), "f2")
    yield "conv_fprop", (*sizes, x, w, array(4), 1, array(y.shape, "f2"))
    yield "conv_dgrad", (*sizes, y, w, array(x.shape, "f2"))
    yield "conv_wgrad", (*sizes, x, y, array(w.shape, "f2"))


def _checksums():
    yield "crc32c", (array(100, "u1"),)


def calls():
    """Yields a right call of each function, its name and arguments: new functions get theirs here."""
    yield from _elementwise()
    yield from _batch_norms()
    yield from _convolutions()
    yield from _poolings()
    yield from _checksums()
    yield "set_threads", (library().threads(),)


def _memory(x):
    while x.base is not None:
        x = x.base
    return x


def _odd_array(draw, x):
    return draw(
        st.sampled_from(
            [
                x[::2],
                x[:-1],
                x[:0],
                np.zeros((2, *x.shape), x.dtype),
                x[..., None].repeat(2, -1)[..., 0],
                x.T if x.ndim > 1 else x[::-1],
                np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape),  # not aligned
                x.astype(x.dtype.newbyteorder(">")),
                _read_only(x),
                np.broadcast_to(x.reshape(-1)[:1], x.shape),
                np.array(1.0, x.dtype),
                *(np.zeros(x.shape, dtype) for dtype in ("f4", "f2", "u2", "i2", "f8", "u1", "?", "i8", "O", "c8")),
                np.zeros(x.shape, "f4,f4"),
            ]
        )
    )


def _read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


_NUMBERS = st.one_of(
    st.integers(-4, 300),
    st.sampled_from([-(2**63), -(2**31), 2**15, 2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1, 2**63, 10**30]),
    st.sampled_from([0.0, -1.5, float("nan"), float("inf"), 1e300, True]),
)
_OBJECTS = st.sampled_from([None, "x", b"abc", (), [], {}, (1, 2), object(), np.float32(3), 1j])


def _odd(draw, right):
    """Returns another value in the place of ``right``, one that is often nearly right."""
    if draw(st.integers(0, 5)) == 0:
        return draw(_OBJECTS)
    if isinstance(right, np.ndarray):
        return _odd_array(draw, right)
    if isinstance(right, tuple) and right:
        values = list(right)
        values[draw(st.integers(0, len(values) - 1))] = draw(_NUMBERS)
        return tuple(draw(st.sampled_from([values, values[:-1], [*values, 1]])))
    return draw(_NUMBERS)


def test_each_function_has_a_call_here():
    functions = {name for name, value in vars(library()).items() if callable(value) and not name.startswith("_")}
    without_arguments = {"instructions", "keep_freed_memory", "sources", "threads"}
    without_arguments |= {f"use_{name}" for name in ("best", "avx2", "avx512", "avx512bf16")}
    of_tables = {"update_table", "update_load", "update_check", "update_run"}  # with arguments of their own
    assert {name for name, _ in calls()} == functions - without_arguments - of_tables


def test_the_calls_are_right_and_write_between_the_guards():
    for name, arguments in calls():
        assert type(getattr(library(), name)(*arguments)) is (int if name == "crc32c" else type(None)), name
        _check_guards(name, arguments)


def _check_guards(name, arguments):
    for x in arguments:
        if isinstance(x, np.ndarray):
            memory = _memory(x)
            assert (memory[:_GUARD] == 0x3A).all(), name
            assert (memory[-_GUARD:] == 0x3A).all(), name


@given(st.data())
@settings(max_examples=tries(300), deadline=None)
def test_odd_arguments_are_errors_or_harmless(data):
    right = list(calls())
    name, arguments = right[data.draw(st.integers(0, len(right) - 1))]
    threads = library().threads()
    odd = list(arguments)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(odd) - 1))
        odd[at] = _odd(data.draw, arguments[at])
    odd = data.draw(st.sampled_from([odd, odd, odd, odd, odd[:-1], [*odd, 1]]))
    try:
        getattr(library(), name)(*odd)
    except (ValueError, TypeError, OverflowError):
        pass
    finally:
        library().set_threads(threads)
    _check_guards(name, arguments)


NO_BUFFERS = [
    (np.zeros(4, BFLOAT16), "cannot include dtype '.' in a buffer"),
    (np.zeros(8, np.float32)[::2], "ndarray is not C-contiguous"),
    (None, "a bytes-like object is required, not 'NoneType'"),
]


@pytest.mark.parametrize(("x", "reason"), NO_BUFFERS)
def test_a_message_says_why_there_is_no_buffer(x, reason):
    with pytest.raises(ValueError, match=f"^relu: x must be a C-contiguous array: {reason}$"):
        library().relu(x, x)


def test_a_message_says_that_an_output_is_read_only():
    with pytest.raises(ValueError, match=r"^relu: y must be a C-contiguous array: buffer source array is read-only$"):
        library().relu(array(4), _read_only(array(4)))


def test_two_arrays_in_the_same_memory():
    """An output shares none with another array, except for functions of single elements: these take it as a whole."""
    in_place = {"convert", "add"}
    for name, arguments in calls():
        arrays = [at for at, x in enumerate(arguments) if isinstance(x, np.ndarray)]
        for one in arrays:
            for other in arrays:
                if one == other or arguments[one].dtype != arguments[other].dtype or not arguments[other].size:
                    continue
                for shift in (0, 1):
                    _try_shared(name, arguments, one, other, shift, shift == 0 and name in in_place)


def _try_shared(name, arguments, one, other, shift, may_be):
    """Calls with two arguments at most ``shift`` elements apart: what is not refused is as with memory of its own."""
    a, b = arguments[one], arguments[other]
    if a.size + b.size == 0:
        return
    memory = np.zeros(max(a.size, b.size) + shift, a.dtype)
    shared, apart = list(arguments), list(arguments)
    shared[one], shared[other] = memory[: a.size].reshape(a.shape), memory[shift:][: b.size].reshape(b.shape)
    values = (np.arange(memory.size) % 3).astype(a.dtype)
    memory[:] = values
    apart = [x.copy() if isinstance(x, np.ndarray) else x for x in shared]
    refused = ""
    try:
        getattr(library(), name)(*shared)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert "share memory" in refused, name
        assert not may_be, name
        return
    getattr(library(), name)(*apart)
    for at, (x, y) in enumerate(zip(shared, apart, strict=True)):
        if isinstance(x, np.ndarray) and at not in (one, other):
            np.testing.assert_array_equal(x, y, err_msg=name)
    # Neither was written, or the one that was written is the same.
    both = (memory[: a.size], apart[one].reshape(-1), memory[shift:][: b.size], apart[other].reshape(-1))
    assert np.array_equal(both[0], both[1]) or np.array_equal(both[2], both[3]), name
