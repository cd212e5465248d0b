"""Chainer's own cuDNN branches over the bridge beside Chainer on NumPy: on a GPU by ``pytest -m gpu``.

Each test also asserts which functions of ``cupy.cudnn`` were called, and that these were not computed by Chainer's own
path after all. ``tests/bridge/test_on_host.py`` runs the same tests on the host, on :mod:`tests.stand_ins.fake_cupy`.
"""

import itertools
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.backends import cuda

from mixprec.bridge import branches
from mixprec.functions import reset_dropout
from mixprec.functions.recurrent import Recurrent
from tests.backends.primitive_cases import (
    EPS32,
    FLOAT16,
    FLOAT32,
    accumulated,
    arrays,
    assert_close,
    batch_norm_gradients,
    batch_norm_moments,
    batch_norm_output,
    eps_of,
    exact,
    given_moments,
)
from tests.bridge.cases import CONVOLUTIONS, Bridge, check_linear, device, on_device, output_like, receive, run, send

pytestmark = pytest.mark.gpu
dtypes = pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
FORWARD, DATA, FILTER = CONVOLUTIONS
ALL_THREE = dict.fromkeys(CONVOLUTIONS, 1)


@pytest.fixture
def bridge(monkeypatch):
    return Bridge(monkeypatch)


def drawn(dtype, *shapes, scale=1.0, seed=0):
    """Returns random arrays of these shapes; ``None`` for ``None``."""
    rng = np.random.default_rng(seed)
    return [None if shape is None else arrays(rng, shape, dtype, scale) for shape in shapes]


def cases(table):
    return pytest.mark.parametrize("case", list(table.values()), ids=list(table))


# --- convolutions

CONVOLUTION_2D = {  # x, W, b, keywords
    "bias": ((2, 8, 7, 6), (16, 8, 3, 3), (16,), {"pad": 1}),
    "odd channels": ((2, 3, 9, 8), (5, 3, 3, 3), (5,), {"stride": 2, "pad": (1, 2)}),
    "stem": ((2, 3, 17, 15), (8, 3, 7, 7), None, {"stride": 2, "pad": 3}),
    "1x1 stride": ((3, 8, 6, 5), (16, 8, 1, 1), None, {"stride": (2, 1)}),
    "dilated": ((2, 8, 9, 11), (8, 8, 3, 3), None, {"pad": 2, "dilate": 2}),
    "groups": ((2, 16, 6, 6), (32, 8, 3, 3), (32,), {"pad": 1, "groups": 2}),
    "a group a channel": ((2, 8, 6, 6), (8, 1, 3, 3), None, {"pad": 1, "groups": 8}),
}


@dtypes
@cases(CONVOLUTION_2D)
def test_convolution_2d(bridge, case, dtype):
    *shapes, keywords = case
    check_linear(lambda x, W, b: F.convolution_2d(x, W, b, **keywords), drawn(dtype, *shapes), sums=[2], roundings=2)
    bridge.used(**ALL_THREE)


CONVOLUTION_ND = {
    "3d": ((2, 8, 4, 5, 6), (16, 8, 3, 3, 3), (16,), {"pad": 1}),
    "3d odd": ((2, 3, 5, 5, 5), (4, 3, 2, 3, 1), None, {"stride": (2, 1, 1), "pad": (0, 1, 0)}),
    "3d groups": ((2, 8, 4, 4, 4), (8, 4, 3, 3, 3), None, {"pad": 1, "groups": 2}),
}


@dtypes
@cases(CONVOLUTION_ND)
def test_convolution_nd(bridge, case, dtype):
    *shapes, keywords = case
    check_linear(lambda x, W, b: F.convolution_nd(x, W, b, **keywords), drawn(dtype, *shapes), sums=[2], roundings=2)
    bridge.used(**ALL_THREE)


DECONVOLUTION_2D = {
    "DCGAN": ((2, 16, 4, 4), (16, 8, 4, 4), None, {"stride": 2, "pad": 1}),
    "outsize": ((2, 8, 4, 5), (8, 8, 3, 3), (8,), {"stride": 2, "pad": 1, "outsize": (8, 10)}),
    "groups": ((2, 16, 5, 5), (16, 4, 3, 3), None, {"pad": 1, "groups": 2}),
    "dilated": ((2, 8, 5, 5), (8, 8, 3, 3), None, {"pad": 2, "dilate": 2}),
}


@dtypes
@cases(DECONVOLUTION_2D)
def test_deconvolution_2d(bridge, case, dtype):
    *shapes, keywords = case
    check_linear(lambda x, W, b: F.deconvolution_2d(x, W, b, **keywords), drawn(dtype, *shapes), sums=[2], roundings=2)
    bridge.used(**ALL_THREE)


@dtypes
@cases({"plain": None, "bias": (4,)})
def test_deconvolution_nd(bridge, case, dtype):
    inputs = drawn(dtype, (2, 8, 3, 4, 3), (8, 4, 4, 4, 4), case)
    check_linear(lambda x, W, b: F.deconvolution_nd(x, W, b, stride=2, pad=1), inputs, sums=[2], roundings=2)
    bridge.used(**ALL_THREE)


def test_gradients_of_gradients_of_a_convolution(bridge):
    """The penalty of WGAN-GP: a gradient with respect to the weights goes through that with respect to the input."""
    x, W, b = drawn(FLOAT32, (2, 8, 6, 6), (8, 8, 3, 3), (8,))

    def penalty(x, W, b):
        (gx,) = chainer.grad([F.sum(F.convolution_2d(x, W, b, pad=1) ** 2)], [x], enable_double_backprop=True)
        return F.sum(gx**2, axis=(1, 2, 3))

    (found, gradients) = on_device(penalty, (x, W, b), np.ones(2, np.float32))
    bridge.used(**dict.fromkeys(CONVOLUTIONS, 2))
    expected, wanted = run(penalty, [exact(x), exact(W), exact(b)], np.ones(2))
    for one, other in zip([found, *gradients], [expected, *wanted], strict=True):
        # Three convolutions of 72 terms each, one behind the other, and up to 288 terms in a sum.
        np.testing.assert_allclose(one, other, rtol=0, atol=3 * 288 * EPS32 * np.abs(other).max())


# --- batch normalization

BATCH_NORMS = {  # x, gamma's dtype or that of x, keywords
    "images": ((4, 8, 5, 3), FLOAT32, {}),
    "images, all of a dtype": ((4, 8, 5, 3), None, {"eps": 1e-3, "decay": 0.5}),
    "odd": ((3, 5, 7, 3), FLOAT32, {"eps": 0.0, "axis": (0, 2, 3)}),
    "single pixels": ((6, 9, 1, 1), FLOAT32, {}),
    "channels last": ((3, 4, 5, 8), None, {"axis": (0, 1, 2)}),
    "rows": ((16, 12), None, {}),
}


def of_cudnn(table, *float32):
    """Pairs of name and dtype; Chainer asks cuDNN for no float16 where channels are the last axis."""
    return [pytest.param(name, FLOAT16, id=f"float16-{name}") for name in table if name not in float32] + [
        pytest.param(name, FLOAT32, id=f"float32-{name}") for name in table
    ]


def by_pixels(array, axis):
    """Moves the channels to the end; ``axis`` is all others."""
    return np.moveaxis(array, next(place for place in range(array.ndim) if place not in axis), -1)


@pytest.mark.parametrize(("name", "dtype"), of_cudnn(BATCH_NORMS, "channels last", "rows"))
def test_batch_normalization(bridge, name, dtype):
    shape, of_gamma, keywords = BATCH_NORMS[name]
    axis = keywords.get("axis", tuple(place for place in range(len(shape)) if place != 1))
    eps, decay = keywords.get("eps", 2e-5), keywords.get("decay", 0.9)
    rng = np.random.default_rng(0)
    x = arrays(rng, shape, dtype, 2.0, 1.0)
    dy = arrays(rng, shape, dtype)
    channels = by_pixels(x, axis).shape[-1]
    gamma, beta = arrays(rng, (2, channels), of_gamma or dtype)
    start = arrays(rng, channels, np.float32), rng.random(channels, np.float32) + 1
    running = [send(array) for array in start]
    variables = [chainer.Variable(send(array)) for array in (x, gamma, beta)]
    y = F.batch_normalization(*variables, running_mean=running[0], running_var=running[1], **keywords)
    y.grad = send(dy)
    node = y.creator
    y.backward()
    bridge.used(batch_normalization_forward_training_ex=1, batch_normalization_backward=1)

    x, dy = by_pixels(x, axis), by_pixels(dy, axis)
    moments = batch_norm_moments(x, eps, merged=True)
    mean, invstd = receive(node.mean).reshape(-1), receive(node.inv_std).reshape(-1)
    assert_close(mean, moments.mean, FLOAT32, moments.mean_bound)
    assert_close(invstd, moments.invstd, FLOAT32, moments.invstd_bound)
    found = by_pixels(receive(y.array), axis)
    assert_close(
        found, *[batch_norm_output(x, gamma, beta, moments)[0], dtype], batch_norm_output(x, gamma, beta, moments)[1]
    )
    unbiased = moments.count / max(moments.count - 1, 1)
    for array, before, value, bound in zip(
        running,
        start,
        (moments.mean, unbiased * moments.variance),
        (moments.mean_bound, moments.variance_bound),
        strict=True,
    ):
        wanted = decay * exact(before) + (1 - decay) * value
        allowed = bound + 4 * EPS32 * (np.abs(exact(before)) + np.abs(value))
        assert_close(receive(array), wanted, FLOAT32, allowed)
    gradients = batch_norm_gradients(dy, x, gamma, mean, invstd)
    for name, variable in zip(("dx", "dgamma", "dbeta"), variables, strict=True):
        found = receive(variable.grad)
        found = by_pixels(found, axis) if name == "dx" else found
        assert_close(found, gradients[name][0], dtype if name == "dx" else gamma.dtype, gradients[name][1])


FIXED = {"images": (3, 8, 5, 4), "rows": (6, 12)}


@pytest.mark.parametrize(("name", "dtype"), of_cudnn(FIXED, "rows"))
def test_fixed_batch_normalization(bridge, name, dtype):
    case, rng = FIXED[name], np.random.default_rng(0)
    x = arrays(rng, case, dtype)
    gamma, beta, mean = arrays(rng, (3, case[1]), np.float32)
    variance = rng.random(case[1], np.float32) + 0.5
    with chainer.no_backprop_mode():
        y = F.fixed_batch_normalization(*[send(array) for array in (x, gamma, beta, mean, variance)], eps=1e-3)
    bridge.used(batch_normalization_forward_inference=1)
    axis = (0, 2, 3)[: len(case) - 1]
    moments = given_moments(mean, 1 / np.sqrt(exact(variance) + 1e-3))
    expected, bound = batch_norm_output(by_pixels(x, axis), gamma, beta, moments)
    assert_close(by_pixels(receive(y.array), axis), expected, dtype, bound)


@dtypes
def test_group_normalization(bridge, dtype):
    """Chainer rounds to the storage dtype between its steps, so that the bound is one of the whole result."""
    rng = np.random.default_rng(0)
    x, gamma, beta = arrays(rng, (3, 12, 5, 4), dtype), *arrays(rng, (2, 12), np.float32)

    def function(x, gamma, beta):
        return F.group_normalization(x, 4, gamma, beta)

    dy = output_like(function, (x, gamma, beta))
    y, gradients = on_device(function, (x, gamma, beta), dy)
    assert bridge.calls["batch_normalization_forward_training"] == 1
    assert bridge.calls["batch_normalization_backward"] == 1
    assert not bridge.own
    expected, wanted = run(function, [exact(x), exact(gamma), exact(beta)], exact(dy))
    for found, value, n in zip([y, *gradients], [expected, *wanted], (4, 8, 60, 60), strict=True):
        assert found.shape == value.shape
        error = np.abs(found.astype(np.float64) - value).max()
        assert error <= n * eps_of(dtype) * np.abs(value).max()


# --- pooling

MAXIMA = {
    "cover_all": ((2, 5, 9, 8), {"ksize": 3, "stride": 2}),
    "not cover_all": ((2, 5, 9, 8), {"ksize": 3, "stride": 2, "cover_all": False}),
    "ResNet": ((2, 8, 12, 12), {"ksize": 3, "stride": 2, "pad": 1, "cover_all": False}),
    "pad": ((2, 3, 7, 6), {"ksize": (3, 2), "stride": (2, 1), "pad": (1, 0)}),
}


@dtypes
@cases(MAXIMA)
def test_max_pooling_2d(bridge, case, dtype):
    """Of equal elements the first one gets the gradient: half of them are 0, as after a ReLU."""
    check_max_pooling(F.max_pooling_2d, *case, dtype)
    bridge.used(pooling_forward=1, pooling_backward=1)


@dtypes
@pytest.mark.parametrize("cover_all", [True, False])
def test_max_pooling_nd(bridge, dtype, cover_all):
    keywords = {"ksize": 3, "stride": 2, "pad": 1, "cover_all": cover_all}
    check_max_pooling(F.max_pooling_nd, (2, 3, 5, 6, 7), keywords, dtype)
    bridge.used(pooling_forward=1, pooling_backward=1)


def check_max_pooling(pool, shape, keywords, dtype):
    x = np.maximum(drawn(dtype, shape)[0], 0)
    window = np.prod(keywords["ksize"]) if np.ndim(keywords["ksize"]) else keywords["ksize"] ** (len(shape) - 2)

    def function(x):
        return pool(x, **keywords)

    y, _ = check_linear(function, [x], count=window, magnitudes=lambda dy: run(function, [exact(x)], dy))
    np.testing.assert_array_equal(y, function(x).array)


@dtypes
@cases(
    {
        "plain": ((2, 5, 9, 8), {"ksize": 3, "stride": 2}),
        "pad": ((2, 3, 7, 6), {"ksize": (3, 2), "stride": (2, 1), "pad": (1, 0)}),
        "global": ((2, 8, 7, 7), {"ksize": (7, 7)}),
    }
)
def test_average_pooling_2d(bridge, case, dtype):
    shape, keywords = case
    check_linear(lambda x: F.average_pooling_2d(x, **keywords), drawn(dtype, shape), count=64)
    bridge.used(pooling_forward=1, pooling_backward=1)


@dtypes
@cases({"2d": (2, 3, 7, 6), "3d": (2, 3, 5, 4, 6)})
@pytest.mark.parametrize("pad_value", [0, None])
def test_average_pooling_nd(bridge, case, dtype, pad_value):
    function = lambda x: F.average_pooling_nd(x, 3, 2, 1, pad_value=pad_value)  # noqa: E731
    check_linear(function, drawn(dtype, case), count=32)
    bridge.used(pooling_forward=1, pooling_backward=1)


# --- activations


@dtypes
@cases({"images": (2, 5, 4, 3), "rows": (7, 11)})
def test_relu(bridge, case, dtype):
    check_exact(F.relu, *drawn(dtype, case))
    bridge.used(activation_forward=1, activation_backward=1)


@dtypes
@pytest.mark.parametrize("function", [F.relu6, lambda x: F.clipped_relu(x, 0.5)], ids=["relu6", "clipped_relu"])
def test_clipped_relu(bridge, dtype, function):
    x = arrays(np.random.default_rng(0), (3, 8, 5), dtype, 5.0)
    with chainer.using_config("use_cudnn", "always"):
        check_exact(function, x)
    bridge.used(activation_forward=1, activation_backward=1)


def check_exact(function, x):
    dy = output_like(function, [x])
    y, (dx,) = on_device(function, [x], dy)
    expected, (wanted,) = run(function, [x], dy)
    for found, value in ((y, expected), (dx, wanted)):
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)


@dtypes
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_sigmoid_and_tanh(bridge, dtype, name):
    """The gradient is made from y as it was rounded."""
    function = getattr(F, name)
    x = arrays(np.random.default_rng(0), (4, 9, 3), dtype, 3.0)
    dy = output_like(function, [x])
    with chainer.using_config("use_cudnn", "always"):
        y, (dx,) = on_device(function, [x], dy)
    bridge.used(activation_forward=1, activation_backward=1)
    expected, (wanted,) = run(function, [exact(x)], exact(dy))
    assert_close(y, expected, dtype, 4 * EPS32)
    slope = 2.0 if name == "tanh" else 1.0
    assert_close(dx, wanted, dtype, np.abs(exact(dy)) * slope * (eps_of(dtype) + 8 * EPS32))


@dtypes
@cases({"rows": (5, 37), "images": (2, 7, 3, 5), "axis 3": (2, 3, 4, 9)})
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(bridge, case, dtype, name):
    axis = 3 if case == (2, 3, 4, 9) else 1
    x = arrays(np.random.default_rng(0), case, dtype, 3.0)

    def function(x):
        return getattr(F, name)(x, axis=axis)

    dy = output_like(function, [x])
    y, (dx,) = on_device(function, [x], dy)
    bridge.used(softmax_forward=1, softmax_backward=1)
    expected, (wanted,) = run(function, [exact(x)], exact(dy))
    count, dy = case[axis], np.abs(exact(dy))
    largest = np.abs(exact(x)).max(axis, keepdims=True) + np.log(count)
    if name == "softmax":
        assert_close(y, expected, dtype, accumulated(count + 4, 2 * expected * (1 + largest)))
        total = (expected * dy).sum(axis, keepdims=True)
        bound = expected * (dy + 2 * total) * (2 * eps_of(dtype) + (count + 8) * EPS32 * (1 + largest))
    else:
        assert_close(y, expected, dtype, accumulated(count + 4, 2 * (1 + largest)))
        total = dy.sum(axis, keepdims=True)
        relative = eps_of(dtype) * np.abs(expected) + (count + 8) * EPS32 * (1 + largest)
        bound = np.exp(expected) * total * relative + accumulated(count, np.exp(expected) * total) + EPS32 * dy
    assert_close(dx, wanted, dtype, bound)


@dtypes
@cases({"rows": (8, 10), "images": (2, 6, 3, 4)})
def test_softmax_cross_entropy(bridge, case, dtype):
    """Chainer's own kernels take the logarithm of the softmax from cuDNN."""
    rng = np.random.default_rng(0)
    x = arrays(rng, case, dtype, 2.0)
    t = rng.integers(-1, case[1], (case[0], *case[2:])).astype(np.int32)

    def loss(x, t):
        variable = chainer.Variable(x)
        value = F.softmax_cross_entropy(variable, t)
        value.backward()
        return value.array, variable.grad

    found = [receive(array) for array in loss(send(x), send(t))]
    assert bridge.calls["softmax_forward"] >= 1
    assert not bridge.own
    for one, other in zip(found, loss(exact(x), t), strict=True):
        assert one.dtype == dtype
        scale = 1 + np.abs(exact(x)).max() if one.ndim == 0 else 4 / (t >= 0).sum()
        assert np.abs(one.astype(np.float64) - other).max() <= (case[1] + 8) * eps_of(dtype) * scale


# --- dropout


@dtypes
@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_dropout(bridge, dtype, ratio):
    count = 40_000
    x = arrays(np.random.default_rng(0), (4, count // 4), dtype, 0.1, 3.0)
    y, (dx,) = on_device(lambda x: F.dropout(x, ratio), [x], np.ones_like(x))
    bridge.used(dropout_forward=1, dropout_backward=1)
    dropped = (y == 0).sum()
    assert abs(dropped - ratio * count) <= 6 * np.sqrt(count * ratio * (1 - ratio))
    kept = y != 0
    np.testing.assert_array_equal(dx != 0, kept)
    assert_close(y, np.where(kept, exact(x) / (1 - ratio), 0), dtype, 2 * eps_of(dtype) * exact(x))
    assert_close(dx, np.where(kept, 1 / (1 - ratio), 0), dtype, 4 * eps_of(dtype))
    other = receive(F.dropout(send(x), ratio).array)
    assert ((other == 0) != (y == 0)).sum() > count * ratio * (1 - ratio)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(receive(F.dropout(send(x), ratio).array), x)


def test_dropout_takes_its_seed_from_chainer(monkeypatch):
    x = send(np.ones(1000, np.float32))

    def drops(seed):
        monkeypatch.setenv("CHAINER_SEED", str(seed))
        monkeypatch.setattr(cuda, "_dropout_states_count", itertools.count())
        reset_dropout()  # only the first states of a device count
        states = cuda.get_cudnn_dropout_states_core(object())  # for another thread
        return [receive(states.forward(None, x, 0.5)[1]) for _ in range(2)]

    first, again, other = drops(7), drops(7), drops(8)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], other[0])


# --- Chainer's configuration


def test_never_is_chainers_own_path(bridge):
    with chainer.using_config("use_cudnn", "never"):
        check_linear(lambda x, W: F.convolution_2d(x, W, pad=1), drawn(FLOAT32, (2, 8, 5, 5), (8, 8, 3, 3)))
        check_exact(F.relu, *drawn(FLOAT32, (4, 9)))
    bridge.used()


def test_auto_leaves_out_what_chainer_keeps_for_always(bridge):
    (x,) = drawn(FLOAT32, (3, 5))
    for function in (F.sigmoid, F.tanh, F.relu6):
        on_device(function, [x], np.ones_like(x))
    bridge.used()


@pytest.mark.parametrize("setting", ["cudnn_deterministic", "autotune"])
def test_settings_of_cudnn(bridge, setting):
    """The same bits each time, if asked for; the right ones in any case."""
    inputs = drawn(FLOAT16, (2, 8, 6, 6), (16, 8, 3, 3), (16,))

    def function(x, W, b):
        return F.convolution_2d(x, W, b, pad=1)

    with chainer.using_config(setting, True):
        first = check_linear(function, inputs, sums=[2], roundings=2)
        second = check_linear(function, inputs, sums=[2], roundings=2)
    bridge.used(**dict.fromkeys(CONVOLUTIONS, 2))
    if setting == "cudnn_deterministic":
        for one, other in zip([first[0], *first[1]], [second[0], *second[1]], strict=True):
            np.testing.assert_array_equal(one, other)


def test_cudnn_fast(bridge):
    """Channels last in memory: the link keeps its weights so, and the plain one's results come out.

    Without a bias, whose gradient Chainer 7.8.1 itself refuses to sum up in that layout.
    """
    layouts = chainer.memory_layouts
    (x,) = drawn(FLOAT16, (2, 8, 6, 5))
    results = []
    for mode, layout in ((None, None), ("cudnn_fast", layouts.CUDNN_CHANNEL_LAST_X)):
        with chainer.using_config("dtype", chainer.mixed16), chainer.using_config("compute_mode", mode):
            W = arrays(np.random.default_rng(1), (16, 8, 3, 3), FLOAT16, 0.1)
            convolution = L.Convolution2D(8, 16, 3, pad=1, nobias=True, initialW=W)
            normalization = L.BatchNormalization(16)
        convolution.to_device(device()), normalization.to_device(device())
        variable = chainer.Variable(send(x)).as_layout(layout)
        convolved = convolution(variable)
        y = normalization(convolved).as_layout(None)
        y.grad = send(output_like(lambda x: F.transpose(x, (0, 1, 2, 3)), [receive(y.array)]))
        convolution.cleargrads(), normalization.cleargrads()
        y.backward()
        weights = convolution.W.grad_var.raw_array
        weights = weights if layout is None else weights.transpose(0, 3, 1, 2).copy()
        statistics = normalization.avg_mean, normalization.avg_var
        results.append([y.array, weights, normalization.gamma.grad, normalization.beta.grad, *statistics])
    assert convolution.W.layout == layouts.CUDNN_CHANNEL_LAST_W
    assert bridge.calls[FORWARD] == bridge.calls[FILTER] == 2
    assert bridge.calls["batch_normalization_backward"] == 2
    assert not bridge.own
    for one, other in zip(*results, strict=True):
        one, other = receive(one).astype(np.float64), receive(other).astype(np.float64)
        # Sums of up to 60 elements whose roundings to float16 differ.
        np.testing.assert_allclose(one, other, rtol=0, atol=8 * eps_of(FLOAT16) * max(np.abs(one).max(), 1.0))


# --- odd arrays


@dtypes
def test_arrays_that_are_not_contiguous(bridge, dtype):
    """Views with other strides, as inputs, weights and gradients."""
    x, W = drawn(dtype, (6, 5, 8, 2), (3, 3, 8, 16))

    def function(x, W):
        y = F.convolution_2d(F.transpose(x, (3, 2, 0, 1)), F.transpose(W, (3, 2, 0, 1)), pad=1)
        return F.transpose(F.max_pooling_2d(F.relu(y), 2), (0, 2, 3, 1))

    dy = output_like(function, (x, W))
    found, gradients = on_device(function, (x, W), dy)
    assert bridge.calls["pooling_backward"] == bridge.calls[FORWARD] == bridge.calls[DATA] == bridge.calls[FILTER] == 1
    assert not bridge.own
    expected, wanted = run(function, [exact(x), exact(W)], exact(dy))
    for one, other in zip([found, *gradients], [expected, *wanted], strict=True):
        assert one.dtype == dtype
        # Sums of up to 72 products of results that were rounded; a maximum may be another one of two close ones.
        close = np.abs(one.astype(np.float64) - other) <= 16 * eps_of(dtype) * np.abs(other).max()
        assert close.mean() >= 0.98


def test_weights_get_no_gradient_from_a_batch_of_0(monkeypatch):
    """Zeros, as on NumPy; and cuDNN, whose tensors have at least one element, is asked for nothing."""
    from mixprec.backends.cudnn.context import CudnnContext

    inputs = drawn(FLOAT32, (0, 3, 5, 5), (4, 3, 3, 3), (4,))
    dy = np.empty((0, 4, 3, 3), np.float32)
    _, expected = run(F.convolution_2d, inputs, dy)
    monkeypatch.setattr(CudnnContext, "plan", lambda *arguments: pytest.fail("cuDNN was asked"))
    monkeypatch.setattr(CudnnContext, "supports", lambda *arguments: pytest.fail("cuDNN was asked"))
    _, gradients = on_device(F.convolution_2d, inputs, dy)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# --- what is not bridged


@pytest.mark.parametrize("link", [L.NStepLSTM, L.NStepGRU, L.NStepRNNTanh])
def test_recurrent_links_are_nodes_of_mixprec(link):
    rng = np.random.default_rng(0)
    net = link(2, 5, 4, 0.0)
    xs = [arrays(rng, (length, 5), np.float32) for length in (4, 3, 1)]

    def results(net, xs):
        net.cleargrads()
        with chainer.using_config("use_cudnn", "always"):
            *_, ys = net(*[None] * (2 if "LSTM" in link.__name__ else 1), xs)
            loss = F.sum(F.concat(ys, axis=0) ** 2)
            loss.backward()
        split = ys[0].creator_node.inputs[0].creator_node  # before Chainer's transposition of lists
        assert (type(split.inputs[0].creator_node) is Recurrent) == (net.xp is not np)
        return [*(y.array for y in ys), *(param.grad for _, param in sorted(net.namedparams()))]

    expected = results(net, xs)
    found = results(net.copy("copy").to_device(device()), [send(x) for x in xs])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(receive(one), other, rtol=0, atol=1e-5 * np.abs(other).max())


def test_spatial_transformer_takes_chainers_own_branch(caplog):
    branches._say.cache_clear()
    x, theta = drawn(FLOAT32, (2, 3, 6, 5), (2, 2, 3), scale=0.5)

    def function(x, theta):
        return F.spatial_transformer_sampler(x, F.spatial_transformer_grid(theta, (4, 7)))

    dy = output_like(function, (x, theta))
    with chainer.using_config("use_cudnn", "always"):
        found, gradients = on_device(function, (x, theta), dy)
    assert "cuDNN's spatial transformer is not bridged: Chainer's own path" in caplog.text
    expected, wanted = run(function, [x, theta], dy)
    for one, other in zip([found, *gradients], [expected, *wanted], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


def test_warnings_of_chainer_are_left(bridge):
    """A batch of one element a channel, of which Chainer warns; the bridge's result is that of NumPy: beta."""
    x = np.ones((1, 8, 1, 1), np.float32)
    gamma, beta = drawn(FLOAT32, (8,), (8,))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = F.batch_normalization(*[send(array) for array in (x, gamma, beta)])
    assert any("no more than one sample" in str(warning.message) for warning in caught)
    np.testing.assert_array_equal(receive(y.array).reshape(8), beta)
