"""CuPy's rules, as all stand-ins for its arrays obey them; where that needs no device, beside CuPy itself."""

import copy

import chainer.functions as F
import ml_dtypes
import numpy as np
import pytest

from benchmarks.recording_device import cupy_rules, null_device
from tests.stand_ins import device_stand_in, graph_array

pytestmark = pytest.mark.slow

SHAPE, NHWC = (2, 3, 4, 5), (0, 3, 1, 2)  # of all arrays below, and how their axes lie in memory
DENSE = {(0, 1, 2, 3): (120, 40, 10, 2), NHWC: (120, 2, 30, 6)}  # strides in float16, by the order of axes
STAND_INS = {"recording": null_device, "graph": graph_array, "device": device_stand_in}


class _Cupy:
    """CuPy itself, where there is a GPU."""

    @staticmethod
    def array(value):
        import cupy

        return cupy.asarray(value)


@pytest.fixture(params=[*STAND_INS, pytest.param("cupy", marks=pytest.mark.gpu)])
def stand_in(request):
    null_device.install()
    return STAND_INS.get(request.param, _Cupy)


def _channels_last(stand_in, seed=0):
    """An array on the device, (N, C, H, W) in the memory order of (N, H, W, C), and the same of NumPy."""
    n, c, h, w = SHAPE
    value = np.random.RandomState(seed).normal(size=(n, h, w, c)).astype(np.float16)
    return stand_in.array(value).transpose(NHWC), value.transpose(NHWC)


C_ORDER = {
    "binary operator": lambda x: x + x,
    "where": lambda x: np.where(x > 0, x, -x),
    "sum over an axis": lambda x: x.sum(axis=0, keepdims=True),
    "concatenate": lambda x: np.concatenate([x, x]),
    "index": lambda x: x[[1, 0]],
    "copy()": lambda x: x.copy(),
    "copy.deepcopy": copy.deepcopy,
    "Chainer's addition": lambda x: F.add(x, x).array,
}
KEPT = {
    "astype": lambda x: x.astype(np.float16),
    'copy(order="K")': lambda x: x.copy(order="K"),
    "empty_like": np.empty_like,
    "in place": lambda x: x.__iadd__(1),
    "out=": lambda x: np.add(x, 1, out=np.empty_like(x)),
}


@pytest.mark.parametrize("name", C_ORDER)
def test_new_arrays_are_c_contiguous(stand_in, name):
    x, value = _channels_last(stand_in)
    expected = C_ORDER[name](value)
    found = C_ORDER[name](x)
    assert isinstance(found, type(x))
    assert found.flags.c_contiguous
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("name", KEPT)
def test_some_keep_the_order_of_their_axes(stand_in, name):
    x, _ = _channels_last(stand_in)
    found = KEPT[name](x)
    assert isinstance(found, type(x))
    assert (found.shape, found.dtype, found.strides) == (SHAPE, np.float16, DENSE[NHWC])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_in_16_bits_are_taken_in_float32_and_rounded_once(dtype):
    """NumPy rounds after each term of a sum over the first axis: 2048 + 1 is 2048 in float16."""
    x = np.ones((3000, 2), dtype)
    for stand_in in (graph_array, device_stand_in):
        found = stand_in.array(x).sum(axis=0)
        assert found.dtype == dtype
        assert found.view(np.ndarray).astype(np.float64).tolist() == [float(dtype(3000))] * 2


def test_what_is_left_of_a_reduction_is_an_array_on_the_device(stand_in):
    x, _ = _channels_last(stand_in)
    found = x.max()
    assert (type(found), found.shape) == (type(x), ())


SHAPES = [(2, 3, 4, 5), (2, 1, 4, 5), (1, 1, 3, 3), (6, 4, 1, 1), (7,), (), (3, 1), (2, 3, 5)]


@pytest.mark.cupy
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_strides_that_are_kept_are_those_of_cupy(dtype):
    internal = pytest.importorskip("cupy._core.internal")
    for shape in SHAPES:
        for order in {tuple(np.roll(range(len(shape)), turn)) for turn in range(max(1, len(shape)))}:
            whole = np.empty([2 * length for length in shape], np.float16).transpose(order)
            for x in (np.empty(shape, np.float16).transpose(order), whole[(slice(0, None, 2),) * len(shape)]):
                flags = x.flags
                char = chr(internal._update_order_char(flags.c_contiguous, flags.f_contiguous, ord("K")))
                expected = {
                    "C": np.empty(x.shape, dtype).strides,
                    "F": np.empty(x.shape, dtype, order="F").strides,
                    "K": tuple(internal._get_strides_for_order_K(x, np.dtype(dtype))),
                }[char]
                found = cupy_rules.strides_of("astype", x.astype(dtype))
                assert _of_long_axes(found, x.shape) == _of_long_axes(expected, x.shape)


def _of_long_axes(strides, shape):
    """Those of axes of length 1 say nothing."""
    return [stride for stride, length in zip(strides, shape, strict=True) if length > 1]


@pytest.mark.cupy
def test_dtypes_of_results_are_those_of_numpy():
    """Numbers of Python are weak, arrays of shape () are as other arrays."""
    cupy = pytest.importorskip("cupy")
    dtypes = list(map(np.dtype, ("bool", "int8", "int32", "int64", "float16", "float32", "float64")))
    for ufunc in (np.add, np.multiply, np.maximum):
        guess = getattr(cupy, ufunc.__name__)._ops._guess_routine_from_in_types
        for one in dtypes:
            for other in dtypes:
                found = guess((one, other), (False, False)).out_types[0]
                assert found == ufunc(np.ones(2, one), np.ones((), other)).dtype
            for number in (1, 1.0):
                if one.kind == "f" or (type(number) is int and one.kind == "i"):  # else CuPy takes it as strong
                    found = guess((one, np.dtype(type(number))), (False, type(number))).out_types[0]
                    assert found == ufunc(np.ones(2, one), number).dtype
