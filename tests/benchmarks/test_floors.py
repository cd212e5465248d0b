"""What calls have to do at least: operations against a count of ones, bytes by hand."""

import types

import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.deconvolution_2d import Deconvolution2DFunction

from benchmarks import floors
from mixprec.backends import cpu
from mixprec.backends.geometry import Convolution, Saved
from mixprec.base.dtypes import BFLOAT16

pytestmark = pytest.mark.slow

RATES = types.SimpleNamespace(bandwidth=1e6, flops={"float32": 2e6, "float16": 8e6})
GEOMETRIES = [
    ((2, 4, 7, 6), (6, 4, 3, 2), 1, 1),
    ((1, 4, 9, 9), (8, 2, 3, 3), 2, 2),
    ((3, 6, 5, 5), (3, 2, 1, 1), 1, 3),
    ((2, 3, 8, 8), (5, 3, 8, 8), 1, 1),
]


def _ones(*shape):
    return np.ones(shape, np.float32)


def _multiplications(x_shape, w_shape, stride, groups):
    """Each product of ones is one, and nothing is padded: the sum of a convolution is the number of its products."""
    y = F.convolution_2d(_ones(*x_shape), _ones(*w_shape), stride=stride, groups=groups).array
    return y.shape, int(y.sum())


@pytest.mark.parametrize(("x_shape", "w_shape", "stride", "groups"), GEOMETRIES)
def test_operations_of_convolutions_of_primitives(x_shape, w_shape, stride, groups):
    y_shape, multiplications = _multiplications(x_shape, w_shape, stride, groups)
    x, w, y = (np.transpose(_ones(*shape), (0, 2, 3, 1)) for shape in (x_shape, w_shape, y_shape))
    convolution = Convolution((stride, stride), groups=groups)
    for name, arguments, result in [
        ("conv_fprop", (x, w, convolution, None), y),
        ("conv_fprop", (x, w, convolution), (y, _ones(2, w_shape[0]))),  # with statistics
        ("conv_dgrad", (y, w, convolution, x.shape), x),
        ("deconv_fprop", (y, w, convolution, x.shape), x),
        ("conv_wgrad", (x, y, convolution, w.shape), w),
    ]:
        assert floors.operations(name, arguments, result) == 2 * multiplications, name


@pytest.mark.parametrize(("x_shape", "w_shape", "stride", "groups"), GEOMETRIES)
def test_operations_of_convolutions_of_chainer(x_shape, w_shape, stride, groups):
    y_shape, multiplications = _multiplications(x_shape, w_shape, stride, groups)
    x, w, y = _ones(*x_shape), _ones(*w_shape), _ones(*y_shape)
    (found,) = Convolution2DFunction(stride, groups=groups).apply((x, w))
    back = Deconvolution2DFunction(stride, outsize=x_shape[2:], groups=groups).apply((y, w))
    assert back[0].shape == x_shape
    for name, inputs, outputs in [
        ("Convolution2DFunction", (x, w), (found.array,)),
        ("Deconvolution2DFunction", (y, w), (back[0].array,)),
        ("Convolution2DGradW", (x, y), (w,)),
    ]:
        assert floors.operations_of_function(name, inputs, outputs) == 2 * multiplications, name


def test_operations_of_linear_layers():
    x, w, y = _ones(4, 6), _ones(5, 6), _ones(4, 5)
    multiplications = int((x @ w.T).sum())
    for name, inputs, outputs in [
        ("LinearFunction", (x, w, _ones(5)), (y,)),
        ("LinearGradData", (w, y), (x,)),
        ("LinearGradWeight", (x, y), (w,)),
    ]:
        assert floors.operations_of_function(name, inputs, outputs) == 2 * multiplications, name
    for name, arguments, result in [("linear", (x, w), y), ("linear_dgrad", (y, w), x), ("linear_wgrad", (x, y), w)]:
        assert floors.operations(name, arguments, result) == 2 * multiplications, name


def test_what_has_no_products_has_no_operations():
    assert floors.operations("cast", (_ones(3), np.dtype("float16")), _ones(3)) == 0
    assert floors.operations_of_function("ReLU", (_ones(3),), (_ones(3),)) == 0


def test_bytes_and_shapes_are_those_of_all_arrays():
    mask = np.zeros(5, np.uint8)
    saved = Saved(_ones(16), _ones(16), mask)
    others = Convolution(), None, "name", np.dtype("float32"), (2, 3)
    value = (_ones(2, 3, 16).astype(BFLOAT16), others, saved, [_ones(2, 2)])
    assert floors.moved(value) == 2 * 3 * 16 * 2 + 2 * 16 * 4 + 5 + 4 * 4
    assert floors.shapes_of(value) == "2x3x16 16 16 5 2x2"
    assert floors.arrays_of(value)[3] is mask


def test_bytes_of_a_primitive():
    x, w = _ones(1, 4, 4, 2), _ones(3, 1, 1, 2)
    result = cpu.PRIMITIVES.conv_fprop(x, w, Convolution())
    assert floors.moved((x, w, Convolution(), result)) == 4 * (16 * 2 + 3 * 2 + 16 * 3)


TIMES = [
    (3e6, 0, "", (3.0, "bytes")),
    (3e6, 4e6, "float32", (3.0, "bytes")),
    (3e6, 8e6, "float32", (4.0, "operations")),
    (3e6, 8e6, "float16", (3.0, "bytes")),
]


@pytest.mark.parametrize(("moved", "operations", "dtype", "expected"), TIMES)
def test_the_floor_is_the_longer_of_two_times(moved, operations, dtype, expected):
    assert floors.floor(moved, operations, dtype, RATES) == expected


def test_products_without_a_rate_have_no_floor():
    with pytest.raises(KeyError, match="float64"):
        floors.floor(1, 1, "float64", RATES)
