"""The functions of ``cupy.cudnn`` on the host's stand-in for a device: arguments, layouts, and what they do where cuDNN
cannot. That Chainer's calls get the right numbers is in ``test_gpu.py``.
"""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from mixprec import backends
from mixprec.backends.cudnn import settings
from mixprec.backends.nchw import Nchw
from mixprec.bridge import constants, functions
from mixprec.bridge.calls import NotBridged
from mixprec.functions import reset_dropout
from tests.backends.primitive_cases import FLOAT16, FLOAT32, arrays
from tests.cases import pairs
from tests.stand_ins import fake_cudnn_limits
from tests.stand_ins.cuda_on_host import HostCuda, send
from tests.stand_ins.device_stand_in import DeviceArray

FLOAT64 = np.dtype(np.float64)
SWITCHES = {"auto_tune": False, "tensor_core": "auto"}
GEOMETRY = (1, 1), (1, 1), (1, 1), 1  # pad, stride, dilation, groups


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Arrays of the stand-in belong to a device whose kernels run on the host."""
    monkeypatch.setattr(backends, "_OTHERS", dict(backends._OTHERS))
    primitives = HostCuda()
    backends.register(DeviceArray, primitives)
    return primitives


def drawn(*shapes, dtype=FLOAT32):
    rng = np.random.default_rng(0)
    return [send(arrays(rng, shape, dtype)) for shape in shapes]


def host(array):
    return np.asarray(array, np.float64)


def close(found, expected, dtype=FLOAT32):
    expected = np.asarray(expected, np.float64)
    np.testing.assert_allclose(
        host(found), expected, rtol=8 * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps * abs(expected).max()
    )


def unwritten(shape, dtype=FLOAT32):
    return send(np.full(shape, np.nan, dtype))


def test_arrays_that_are_not_contiguous():
    x, w, b = drawn((2, 3, 6, 5), (4, 3, 3, 3), (8,))
    y = unwritten((2, 4, 5, 6)).transpose(0, 1, 3, 2)
    x, b = x[:, :, ::-1], b[::2]
    functions.convolution_forward(x, w, b, y, *GEOMETRY, **SWITCHES)
    close(y, F.convolution_2d(*map(host, (x, w, b)), pad=1).array)


def test_channels_last():
    x, w, dy = drawn((2, 6, 5, 3), (4, 3, 3, 3), (2, 6, 5, 4))
    layouts = {"d_layout": constants.CUDNN_TENSOR_NHWC, "w_layout": constants.CUDNN_TENSOR_NHWC}
    y, dx, dw = unwritten(dy.shape), unwritten(x.shape), unwritten(w.shape)
    functions.convolution_forward(x, w, None, y, *GEOMETRY, **SWITCHES, **layouts)
    functions.convolution_backward_data(w, dy, None, dx, *GEOMETRY, deterministic=False, **SWITCHES, **layouts)
    functions.convolution_backward_filter(x, dy, dw, *GEOMETRY, deterministic=False, **SWITCHES, **layouts)
    there, back = (0, 3, 1, 2), (0, 2, 3, 1)
    plain_x, plain_w = (chainer.Variable(host(each).transpose(there)) for each in (x, w))
    plain_y = F.convolution_2d(plain_x, plain_w, pad=1)
    plain = [plain_y, *chainer.grad([plain_y], [plain_x, plain_w], [chainer.Variable(host(dy).transpose(there))])]
    for found, expected in zip((y, dx, dw), plain, strict=True):
        close(found, expected.array.transpose(back))


def test_a_layout_that_is_not_there():
    x, w, y = drawn((2, 3, 6, 5), (4, 3, 3, 3), (2, 4, 6, 5))
    with pytest.raises(ValueError, match="d_layout, w_layout: found 0 and 1, expected both CUDNN_TENSOR_NCHW"):
        functions.convolution_forward(x, w, None, y, *GEOMETRY, **SWITCHES, w_layout=1)


SAID = [
    ({}, {}),
    ({"auto_tune": True}, {"autotune": "measure"}),
    ({"deterministic": True}, {"deterministic": True}),
    ({"tensor_core": "never"}, {"tensor_cores": False}),
    ({"tensor_core": "always"}, {"tf32": True}),
]


@pytest.mark.parametrize(("given", "expected"), SAID, ids=str)
def test_what_is_said_about_engines_counts(monkeypatch, given, expected):
    seen = []
    for name in ("conv_fprop", "conv_dgrad", "conv_wgrad"):
        monkeypatch.setattr(Nchw, name, lambda *arguments: seen.append(settings.current()))
    x, w, y = drawn((2, 3, 6, 5), (4, 3, 3, 3), (2, 4, 6, 5))
    before = settings.current()
    switches = {**SWITCHES, "deterministic": False, **given}
    functions.convolution_backward_data(w, y, None, x, *GEOMETRY, **switches)
    functions.convolution_backward_filter(x, y, w, *GEOMETRY, **switches)
    if "deterministic" not in given:
        switches.pop("deterministic")
        functions.convolution_forward(x, w, None, y, *GEOMETRY, **switches)
    assert len(seen) == (2 if "deterministic" in given else 3)
    for found in seen:
        assert {name: getattr(found, name) for name in expected} == expected
    assert settings.current() is before


# --- what cuDNN cannot do


def convolved(function, x, w, b, dy, geometry):
    """Returns what one of the three functions writes."""
    if function == "convolution_forward":
        y = unwritten(dy.shape, x.dtype)
        functions.convolution_forward(x, w, b, y, *geometry, **SWITCHES)
        return y
    if function == "convolution_backward_data":
        dx = unwritten(x.shape, x.dtype)
        functions.convolution_backward_data(w, dy, None, dx, *geometry, deterministic=False, **SWITCHES)
        return dx
    dw = unwritten(w.shape, x.dtype)
    functions.convolution_backward_filter(x, dy, dw, *geometry, deterministic=False, **SWITCHES)
    return dw


NAMES = ("convolution_forward", "convolution_backward_data", "convolution_backward_filter")
CONVOLUTIONS = {
    "2d": ((2, 4, 6, 5), (6, 2, 3, 3), (2, 6, 3, 3), ((1, 1), (2, 2), (1, 1), 2)),
    "3d": ((2, 2, 4, 5, 6), (3, 2, 3, 2, 3), (2, 3, 2, 4, 6), ((0, 0, 1), (1, 1, 1), (1, 1, 1), 1)),
}


@pytest.mark.parametrize(("function", "case", "refused"), pairs(NAMES, list(CONVOLUTIONS), ["no engine", "float64"]))
def test_chainers_own_convolution(monkeypatch, announced, function, case, refused):
    """It gives the same, and is announced once with shape and reason."""
    *shapes, geometry = CONVOLUTIONS[case]
    dtype = FLOAT64 if refused == "float64" else FLOAT32
    x, w, dy, b = drawn(*shapes, (shapes[1][0],), dtype=dtype)
    pad, stride, dilation, groups = geometry
    plain_x, plain_w = chainer.Variable(host(x)), chainer.Variable(host(w))
    plain = F.convolution_nd(plain_x, plain_w, host(b), stride, pad, dilate=dilation, groups=groups)
    gradients = chainer.grad([plain], [plain_x, plain_w], [chainer.Variable(host(dy))])
    expected = dict(zip(NAMES, (plain, *gradients), strict=True))[function].array
    rule = {"a test": lambda nodes, kinds, storage: refused == "no engine"}
    monkeypatch.setattr(fake_cudnn_limits, "_RULES", rule)
    for _ in range(2):
        close(convolved(function, x, w, b, dy, geometry), expected)
    (message,) = (record.getMessage() for record in announced.records)
    assert message.startswith(f"cupy.cudnn.{function} by Chainer's own, slower path: ")
    assert ("x".join(map(str, shapes[1])) if refused == "no engine" else "float64") in message


def _batch_norm(x, forward):
    gamma, beta, mean, var = drawn(*[(3,)] * 4, dtype=x.dtype)
    var = abs(var)
    if forward:
        _, y, *found = functions.batch_normalization_forward_training_ex(
            x, gamma, beta, mean, var, None, None, 1e-3, 0.9, True, constants.CUDNN_BATCHNORM_SPATIAL, False
        )
        return (y, *found, mean, var)
    return functions.batch_normalization_backward(
        x, gamma, x * x, mean, var, 1e-3, True, constants.CUDNN_BATCHNORM_SPATIAL, False
    )


def _dropout(x):
    states = functions.DropoutStates(None, 3)
    space, y = states.forward(None, x, 0.25)
    assert set(np.unique(np.round(host(y) / host(x), 3))) <= {0, 1.333}
    same = states.backward(None, x, 0.25, space)
    np.testing.assert_array_equal(host(same), host(y))
    return ()  # the random numbers are others


def _pooled(x, mode):
    y = functions.pooling_forward(x, unwritten((2, 3, 3, 3), x.dtype), (3, 2), (2, 2), (1, 0), mode)
    return y, functions.pooling_backward(x, y, y * y, (3, 2), (2, 2), (1, 0), mode)


def _activated(x, mode):
    y = functions.activation_forward(x, mode, 0.5)
    return y, functions.activation_backward(x, y, x * x, mode, 0.5)


def _softmax(x, mode):
    y = functions.softmax_forward(x, 1, mode)
    return y, functions.softmax_backward(y, x * x, 1, mode)


OTHERS = {
    "batch norm": lambda x: _batch_norm(x, True),
    "batch norm backward": lambda x: _batch_norm(x, False),
    "batch norm inference": lambda x: [
        functions.batch_normalization_forward_inference(x, *map(abs, drawn(*[(3,)] * 4, dtype=x.dtype)), 1e-3, True, 1)
    ],
    "dropout": _dropout,
    "max": lambda x: _pooled(x, constants.CUDNN_POOLING_MAX),
    "deterministic max": lambda x: _pooled(x, constants.CUDNN_POOLING_MAX_DETERMINISTIC),
    "average": lambda x: _pooled(x, constants.CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING),
    "average without padding": lambda x: _pooled(x, constants.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING),
    "relu": lambda x: _activated(x, constants.CUDNN_ACTIVATION_RELU),
    "tanh": lambda x: _activated(x, constants.CUDNN_ACTIVATION_TANH),
    "clipped relu": lambda x: _activated(x, constants.CUDNN_ACTIVATION_CLIPPED_RELU),
    "softmax": lambda x: _softmax(x, constants.CUDNN_SOFTMAX_ACCURATE),
    "log softmax": lambda x: _softmax(x, constants.CUDNN_SOFTMAX_LOG),
}


@pytest.mark.parametrize("name", OTHERS)
def test_float64_is_chainers_own(announced, name):
    """Announced, and the same as float32 by the bridge up to the rounding of that."""
    x = drawn((2, 3, 6, 6))[0]
    ours = OTHERS[name](x)
    assert not announced.records
    own = OTHERS[name](x.astype(np.float64))
    messages = [record.getMessage() for record in announced.records]
    assert messages
    assert all(message.endswith("by Chainer's own, slower path: an array of float64") for message in messages)
    OTHERS[name](x.astype(np.float64))
    assert len(announced.records) == len(messages)
    for found, expected in zip(ours, own, strict=True):
        assert (found.dtype, expected.dtype) == (FLOAT32, FLOAT64)
        np.testing.assert_allclose(host(found), host(expected), rtol=1e-4, atol=1e-5)


MODES = [
    (lambda x: functions.activation_forward(x, 9), "mode: found 9, expected one of 1, 0, 2, 3"),
    (lambda x: functions.softmax_forward(x, 1, 9), "mode: found 9, expected one of 0, 1, 2"),
    (lambda x: functions.pooling_backward(x, x, x, (1, 1), (1, 1), (0, 0), 9), "mode: found 9, expected one of"),
]


@pytest.mark.parametrize(("call", "message"), MODES)
def test_modes_that_are_not_there(call, message):
    with pytest.raises(ValueError, match=message):
        call(drawn((2, 3, 4, 5))[0])


# --- batch normalization


def test_statistics_in_float16():
    """They are computed in float32, and what is kept of them is rounded."""
    (x,) = drawn((4, 3, 5, 5), dtype=FLOAT16)
    gamma, beta, mean, var = (send(np.full(3, value, np.float16)) for value in (2, 1, 0, 1))
    _, y, found_mean, found_invstd = functions.batch_normalization_forward_training_ex(
        x, gamma, beta, mean, var, None, None, 1e-3, 0.5, True, 1, False
    )
    exact = host(x)
    axes = (0, 2, 3)
    close(found_mean, exact.mean(axes))
    close(found_invstd, 1 / np.sqrt(exact.var(axes) + 1e-3))
    close(mean, exact.mean(axes) / 2, FLOAT16)
    close(var, 0.5 + exact.var(axes, ddof=1) / 2, FLOAT16)
    assert (y.dtype, found_mean.dtype, mean.dtype) == (FLOAT16, FLOAT32, FLOAT16)
    gx, ggamma, gbeta = functions.batch_normalization_backward(
        x, gamma, x, found_mean, found_invstd, 1e-3, True, 1, False
    )
    assert (gx.dtype, ggamma.dtype, gbeta.dtype) == (FLOAT16, FLOAT32, FLOAT32)
    close(gbeta, exact.sum(axes))


def test_buffers_for_the_statistics_of_the_batch():
    x, gamma, beta, mean, var = drawn((4, 3, 5, 5), *[(3,)] * 4)
    given = unwritten((3,)), unwritten((3,))
    _, *found = functions.batch_normalization_forward_training(
        x, gamma, beta, mean, abs(var), *given, 1e-3, 0.5, True, 1, False
    )
    assert [each is buffer for each, buffer in zip(found, given, strict=True)] == [True, True]
    close(given[0], host(x).mean((0, 2, 3)))


def test_nothing_moves_with_a_decay_of_1():
    """Group normalization gives its beta as running statistics, and a decay of 1."""
    x, gamma, beta = drawn((4, 3, 5, 5), (3,), (3,))
    x[0, 0, 0, 0] = np.inf
    before = beta.copy()
    functions.batch_normalization_forward_training(x, gamma, beta, beta, beta, None, None, 1e-3, 1.0, True, 1, False)
    np.testing.assert_array_equal(beta, before)


@pytest.mark.parametrize(("shape", "last"), [((6, 5), False), ((2, 3, 4, 5), True)], ids=str)
def test_channels_of_the_last_axis(shape, last):
    x, gamma, beta, mean, var, dy = drawn(shape, *[(5,)] * 4, shape)
    options = (last, int(last), False)
    layout = {"d_layout": constants.CUDNN_TENSOR_NHWC}
    y, *found = functions.batch_normalization_forward_training(
        x, gamma, beta, mean, abs(var), None, None, 1e-3, 0.9, *options, **layout
    )
    axis = tuple(range(len(shape) - 1))
    plain = [chainer.Variable(host(each)) for each in (x, gamma, beta)]
    expected = F.batch_normalization(*plain, eps=1e-3, axis=axis)
    close(y, expected.array)
    gradients = chainer.grad([expected], plain, [chainer.Variable(host(dy))])
    ours = functions.batch_normalization_backward(x, gamma, dy, *found, 1e-3, *options, **layout)
    for one, other in zip(ours, gradients, strict=True):
        np.testing.assert_allclose(host(one), other.array, rtol=1e-4, atol=1e-5)


# --- dropout, switches


def test_seeds_of_dropout():
    """That of the first states on a device counts: there is one sequence, as for converted layers."""
    (x,) = drawn((50, 40))
    results = []
    for seed in (7, 7, 8):
        reset_dropout()
        states = functions.DropoutStates(None, np.uint64(seed))
        space, first = states.forward(None, x, 0.5)
        results.append((host(first), host(functions.DropoutStates(None, 9).forward(None, x, 0.5)[1])))
        assert space.size < x.size / 100  # not the mask
    one, same, other = results
    np.testing.assert_array_equal(one, same)
    for different in (one[1], other[0]):
        assert (different != one[0]).any()


def test_workspace_is_one_setting():
    functions.set_max_workspace_size(2**20)
    assert settings.current().workspace == functions.get_max_workspace_size() == 2**20


def test_batches_of_nothing(announced):
    """Chainer's own batch normalization of them, which warns of them itself."""
    x, gamma, beta, mean, var = drawn((0, 3, 4, 4), *[(3,)] * 4)
    with pytest.warns(RuntimeWarning):
        _, y, *_ = functions.batch_normalization_forward_training_ex(
            x, gamma, beta, mean, abs(var), None, None, 1e-3, 0.9, True, 1, False
        )
    assert y.shape == x.shape
    assert "an empty batch has no statistics, shape (0, 3, 4, 4)" in announced.text


def test_four_axes_in_space(announced):
    x, w, y = drawn((1, 2, 3, 3, 3, 3), (1, 2, 2, 2, 2, 2), (1, 1, 2, 2, 2, 2))
    functions.convolution_forward(x, w, None, y, (0,) * 4, (1,) * 4, (1,) * 4, 1, **SWITCHES)
    close(y, F.convolution_nd(host(x), host(w)).array)
    assert "cuDNN has no convolutions with 4 spatial axes" in announced.text


def test_what_is_not_bridged_says_so():
    with pytest.raises(NotBridged, match=r"cupy\.cudnn\.rnn_forward_training is not bridged to cuDNN 9"):
        functions.rnn_forward_training(1, 2, states=3)
