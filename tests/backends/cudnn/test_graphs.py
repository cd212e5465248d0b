"""The graphs given to cuDNN compute what the primitives promise: with a stand-in for cuDNN, against Chainer in float64.

Bounds: every output is rounded once to its dtype. In between there is float32, which costs at most a few 2**-24 of the
largest value that is rounded there.
"""

import chainer.functions as F
import ml_dtypes
import numpy as np
import pytest
from chainer import Variable

from mixprec.backends.cudnn import library
from mixprec.backends.cudnn.operation_graphs import describe
from mixprec.backends.geometry import Convolution
from tests.backends.cudnn import operations
from tests.stand_ins import fake_cudnn
from tests.stand_ins.fake_cudnn_limits import cudnnGraphNotSupportedError

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
HALF_ULP = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
SUBNORMAL = {"float16": 2.0**-25, "bfloat16": 0, "float32": 0}  # half of the step near 0

CONVOLUTIONS = {
    "1x1": ((2, 5, 4, 8), (16, 1, 1, 8), Convolution()),
    "3x3": ((2, 5, 7, 8), (8, 3, 3, 8), Convolution(pad=(1, 1))),
    "3x3 stride 2": ((2, 6, 7, 8), (8, 3, 3, 8), Convolution(stride=(2, 2), pad=(1, 1))),
    "1x1 stride 2": ((1, 6, 7, 8), (16, 1, 1, 8), Convolution(stride=(2, 2))),
    "3x2, all different": ((2, 9, 8, 8), (8, 3, 2, 8), Convolution((3, 2), (2, 1), (2, 3))),
    "groups": ((2, 5, 5, 16), (24, 3, 3, 2), Convolution(pad=(1, 1), groups=8)),
    "depthwise": ((1, 5, 6, 8), (8, 3, 3, 1), Convolution(stride=(1, 2), pad=(1, 1), groups=8)),
    "odd channels": ((2, 5, 5, 3), (5, 3, 3, 3), Convolution(stride=(2, 2), pad=(1, 1))),
    "linear": ((4, 1, 1, 12), (10, 1, 1, 12), Convolution()),
}


def graph_of(operation, described=describe):
    graph = fake_cudnn.pygraph(
        io_data_type=library.data_type(fake_cudnn, operation.inputs[0].dtype),
        intermediate_data_type=fake_cudnn.data_type.FLOAT,
        compute_data_type=fake_cudnn.data_type.FLOAT,
        sm_version=90,
    )
    described(fake_cudnn, graph, operation)
    return graph


def buffer_of(tensor):
    if tensor.dtype == "boolean":
        return np.zeros(-(-np.prod(tensor.shape) // 8), np.uint8)
    return np.full(tensor.shape, np.nan, DTYPES[tensor.dtype])


def run(operation, **inputs):
    """Returns the outputs by name, in their dtypes."""
    outputs = {tensor.name: buffer_of(tensor) for tensor in operation.outputs}
    pack = {uid: {**inputs, **outputs}[tensor.name] for uid, tensor in enumerate(operation.tensors, start=1)}
    fake_cudnn.execute(graph_of(operation), pack)
    return outputs


def random_inputs(operation, seed=0):
    """Numbers around 0 that the dtype of each input has, positive where a variance is wanted."""
    rng = np.random.default_rng(seed)
    arrays = {
        t.name: rng.standard_normal(t.shape).astype(DTYPES[t.dtype]) for t in operation.inputs if t.name != "mask"
    }
    for name in {"running_var", "invstd"} & set(arrays):
        arrays[name] = np.abs(arrays[name]) + np.float32(0.1)
    return arrays


def wide(arrays):
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def nchw(x):
    return np.moveaxis(x, -1, 1)


def nhwc(x):
    return np.moveaxis(x, 1, -1)


def round_to(x, dtype):
    return x.astype(DTYPES[dtype]).astype(np.float64)


def assert_rounded(found, expected, dtype, magnitude, steps=4):
    """Within one rounding to the dtype after ``steps`` roundings to float32 of values up to ``magnitude``."""
    bound = HALF_ULP[dtype] * np.abs(expected) + SUBNORMAL[dtype] + steps * 2.0**-24 * magnitude
    assert found.shape == expected.shape
    assert (np.abs(found.astype(np.float64) - expected) <= bound * (1 + 2.0**-10)).all()


def convolved(x, w, convolution, b=None):
    """Chainer's in float64, on NHWC and KRSC."""
    y = F.convolution_2d(
        nchw(x), nchw(w), b, convolution.stride, convolution.pad, dilate=convolution.dilation, groups=convolution.groups
    )
    return nhwc(y.array)


def gradients(x, w, dy, convolution):
    """Those of Chainer's convolution in float64, with respect to x and w."""
    x, w = Variable(nchw(x)), Variable(nchw(w))
    y = F.convolution_2d(
        x, w, None, convolution.stride, convolution.pad, dilate=convolution.dilation, groups=convolution.groups
    )
    y.grad = nchw(dy)
    y.backward()
    return nhwc(x.grad), nhwc(w.grad)


def relu(x):
    return np.maximum(x, 0)


@pytest.fixture(params=CONVOLUTIONS, ids=lambda name: name.replace(" ", "_").replace(",", ""))
def geometry(request):
    return CONVOLUTIONS[request.param]


each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@each_dtype
@pytest.mark.parametrize("b", [None, "storage", "float32"])
@pytest.mark.parametrize("activation", [False, True], ids=["linear", "relu"])
def test_conv_fprop(geometry, dtype, b, activation):
    x, w, convolution = geometry
    b = dtype if b == "storage" else b
    operation = operations.conv_fprop(x, w, convolution, dtype, b=b, relu=activation)
    inputs = random_inputs(operation)
    v = wide(inputs)
    expected = convolved(v["x"], v["w"], convolution, v.get("b"))
    magnitude = np.abs(expected).max()
    y = run(operation, **inputs)["y"]
    assert y.dtype == DTYPES[dtype]
    assert_rounded(y, relu(expected) if activation else expected, dtype, magnitude)


@pytest.mark.parametrize("name", ["1x1", "3x3", "3x3 stride 2"])
def test_sums_for_a_batch_normalization(name):
    x, w, convolution = CONVOLUTIONS[name]
    operation = operations.conv_fprop(x, w, convolution, "float16", sums=True)
    inputs = random_inputs(operation)
    found = run(operation, **inputs)
    y = found["y"].astype(np.float64)
    v = wide(inputs)
    expected = convolved(v["x"], v["w"], convolution)
    assert_rounded(found["y"], expected, "float16", np.abs(expected).max())
    for name, terms in (("sum", y), ("square_sum", y**2)):
        assert found[name].dtype == np.float32
        assert_rounded(found[name], terms.sum((0, 1, 2)), "float32", np.abs(terms).sum((0, 1, 2)))


@each_dtype
def test_conv_dgrad(geometry, dtype):
    x, w, convolution = geometry
    operation = operations.conv_dgrad(x, w, convolution, dtype)
    inputs = random_inputs(operation)
    v = wide(inputs)
    expected, _ = gradients(np.zeros(x), v["w"], v["dy"], convolution)
    assert_rounded(run(operation, **inputs)["dx"], expected, dtype, np.abs(expected).max())


@each_dtype
def test_conv_wgrad(geometry, dtype):
    x, w, convolution = geometry
    operation = operations.conv_wgrad(x, w, convolution, dtype)
    inputs = random_inputs(operation)
    v = wide(inputs)
    _, expected = gradients(v["x"], np.zeros(w), v["dy"], convolution)
    assert_rounded(run(operation, **inputs)["dw"], expected, dtype, np.abs(expected).max())


NORMALIZATIONS = {"plain": (False, False), "relu": (True, False), "add_relu": (True, True)}
each_normalization = pytest.mark.parametrize(("activation", "add"), NORMALIZATIONS.values(), ids=NORMALIZATIONS)
X = (3, 4, 5, 16)


def normalized(v, eps):
    """The sum before the ReLU, and Chainer's running statistics, in float64."""
    mean, variance = v["running_mean"].copy(), v["running_var"].copy()
    y = F.batch_normalization(
        nchw(v["x"]), v["gamma"], v["beta"], eps=eps, running_mean=mean, running_var=variance, decay=0.75
    )
    return nhwc(y.array) + v.get("add", 0), mean, variance


@each_dtype
@each_normalization
def test_batch_norm(dtype, activation, add):
    operation = operations.batch_norm(X, dtype, relu=activation, add=add, eps=2e-5, momentum=0.25)
    inputs = random_inputs(operation)
    v = wide(inputs)
    before, mean, variance = normalized(v, 2e-5)
    found = run(operation, **inputs)
    magnitude = np.abs(before).max() + np.abs(v["beta"]).max()
    assert_rounded(found["y"], relu(before) if activation else before, dtype, magnitude, steps=8)
    flat = v["x"].reshape(-1, X[-1])
    expected = {
        "mean": flat.mean(0),
        "invstd": 1 / np.sqrt(flat.var(0) + 2e-5),
        "next_mean": mean,
        "next_var": variance,
    }
    for name in operations.STATISTICS:
        assert found[name].dtype == np.float32
        assert_rounded(found[name], expected[name], "float32", np.abs(expected[name]).max())
    if add and activation:
        mask = np.unpackbits(found["mask"], bitorder="little").reshape(X)
        assert (mask == (found["y"].astype(np.float64) > 0)).all()
        assert 0.2 < mask.mean() < 0.8


@each_dtype
@pytest.mark.parametrize(
    ("activation", "add"),
    [(False, False), (True, False), (True, True)],
)
def test_batch_norm_backward(dtype, activation, add):
    operation = operations.batch_norm_backward(X, dtype, relu=activation, add=add)
    inputs = random_inputs(operation)
    rng = np.random.default_rng(1)
    inputs.update(beta=rng.standard_normal(X[-1]).astype(np.float32), add=rng.standard_normal(X).astype(DTYPES[dtype]))
    v = wide(inputs)
    flat = v["x"].reshape(-1, X[-1])
    inputs["mean"] = flat.mean(0).astype(np.float32)
    inputs["invstd"] = (1 / np.sqrt(flat.var(0) + 2e-5)).astype(np.float32)
    x, gamma, beta, residual = map(Variable, (nchw(v["x"]), v["gamma"], v["beta"], nchw(v["add"])))
    before = F.batch_normalization(x, gamma, beta, eps=2e-5) + (residual if add else 0)
    y = F.relu(before) if activation else F.identity(before)
    dy = v["dy"]
    y.grad = nchw(dy)
    y.backward()
    mask = nhwc(before.array) > 0
    inputs["mask"] = np.packbits(mask, bitorder="little")
    found = run(operation, **{tensor.name: inputs[tensor.name] for tensor in operation.inputs})
    sums = np.abs(dy).sum() * (1 + np.abs(flat).max() ** 2)  # the statistics have errors of float32
    assert_rounded(found["dx"], nhwc(x.grad), dtype, np.abs(x.grad).max() + sums / flat.shape[0], steps=8)
    assert_rounded(found["dgamma"], gamma.grad, "float32", sums, steps=8)
    assert_rounded(found["dbeta"], beta.grad, "float32", sums, steps=8)
    if add and activation:
        np.testing.assert_array_equal(found["dadd"].astype(np.float64), np.where(mask, dy, 0))


def test_tensors_are_numbered_in_the_order_of_the_operation():
    operation = operations.batch_norm(X, "float16", relu=True, add=True)
    graph = graph_of(operation)
    graph.validate()
    uids = {tensor.uid: tensor.dim for tensor in graph.operands}
    assert sorted(uids) == list(range(1, len(operation.tensors) + 1))
    assert uids[1] == [3, 16, 4, 5]
    assert uids[2] == [1, 16, 1, 1]


def test_strides_say_that_channels_lie_innermost():
    graph = graph_of(operations.conv_dgrad((2, 9, 8, 6), (4, 3, 2, 6), Convolution((3, 2), (2, 1), (2, 3)), "float16"))
    dy, w, dx = graph.operands
    assert (w.dim, w.stride) == ([4, 6, 3, 2], [36, 1, 12, 6])
    assert (dx.dim, dx.stride) == ([2, 6, 9, 8], [432, 1, 48, 6])
    assert dy.dim[:2] == [2, 4]


def test_stand_in_computes_on_addresses_too():
    """As the backend gives them."""
    x, w, convolution = CONVOLUTIONS["3x3"]
    operation = operations.conv_fprop(x, w, convolution, "bfloat16")
    arrays = {**random_inputs(operation), "y": buffer_of(operation.outputs[0])}
    expected = run(operation, x=arrays["x"], w=arrays["w"])["y"]
    pack = {uid: arrays[tensor.name].ctypes.data for uid, tensor in enumerate(operation.tensors, start=1)}
    fake_cudnn.execute(graph_of(operation), pack)
    np.testing.assert_array_equal(arrays["y"], expected)


REFUSED = {
    "10 channels": operations.batch_norm((2, 3, 3, 10), "float16"),
    "6 channels": operations.batch_norm_backward((2, 3, 3, 6), "float32"),
    "addition without ReLU": operations.batch_norm(X, "float16", add=True),
    "sums in bfloat16": operations.conv_fprop(*CONVOLUTIONS["3x3"], "bfloat16", sums=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_stand_in_refuses_what_cudnn_has_no_engine_for(name):
    """The same cases are tried with cuDNN itself in test_plans.py."""
    with pytest.raises(cudnnGraphNotSupportedError):
        graph_of(REFUSED[name]).build([fake_cudnn.heur_mode.A])
