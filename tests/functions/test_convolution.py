"""Convolutions of variables in NHWC beside Chainer's in NCHW and float64."""

import logging

import chainer
import chainer.functions as CF
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec import backends
from mixprec import functions as F
from mixprec.base import announcements
from tests.cases import tries
from tests.functions.nhwc import BFLOAT16, DTYPES, EPS, EPS32, assert_rounded, channels_last, normal, run, to_nchw, wide

CONVOLUTIONS = {
    "n": st.integers(1, 3),
    "c": st.integers(1, 5),
    "k": st.integers(1, 5),
    "size": st.tuples(st.integers(5, 8), st.integers(5, 8)),
    "ksize": st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 3])),
    "stride": st.tuples(st.integers(1, 3), st.integers(1, 2)),
    "pad": st.tuples(st.integers(0, 2), st.integers(0, 1)),
    "dilate": st.integers(1, 2),
    "groups": st.integers(1, 2),
    "bias": st.booleans(),
    "dtype": st.sampled_from(DTYPES),
    "seed": st.integers(0, 1000),
}


def _chainer(function, arrays, dy):
    """Result and gradients of Chainer's function of NCHW in float64, the images among them in NHWC again."""
    x, W, *b = (wide(array) for array in arrays)
    y, gradients, _ = run(function, (to_nchw(x), np.ascontiguousarray(W), *b), to_nchw(wide(dy)))
    return [y.transpose(0, 2, 3, 1), gradients[0].transpose(0, 2, 3, 1), *gradients[1:]]


def _assert_right(mine, chainers, arrays, terms, roundings=1):
    """Result and gradients are rounded once, and are otherwise sums of as many products in float32 as in ``terms``."""
    dtype = arrays[0].dtype
    y, gradients, dy = run(mine, arrays)
    exact = _chainer(chainers, arrays, dy)
    magnitudes = _chainer(chainers, [np.abs(array) for array in arrays], np.abs(dy))
    for found, right, magnitude, count in zip([y, *gradients], exact, magnitudes, terms, strict=False):
        assert_rounded(found, right, dtype, (count + 1) * EPS32 * magnitude + (roundings - 1) * EPS[dtype] * magnitude)
    assert gradients[1].transpose(0, 2, 3, 1).flags.c_contiguous


@settings(max_examples=tries(40))
@given(**CONVOLUTIONS)
def test_convolution_is_chainers(n, c, k, size, ksize, stride, pad, dilate, groups, bias, dtype, seed):
    arrays = [
        normal(seed, n, *size, c * groups, dtype=dtype),
        channels_last(normal(seed + 1, k * groups, c, *ksize, dtype=dtype)),
        normal(seed + 2, k * groups, dtype=dtype),
    ][: 3 if bias else 2]
    rest = {"stride": stride, "pad": pad, "dilate": dilate, "groups": groups}
    taps, pixels = ksize[0] * ksize[1], n * (size[0] + 4) * (size[1] + 2)
    _assert_right(
        lambda *inputs: F.convolution_2d(*inputs, **rest),
        lambda *inputs: CF.convolution_2d(*inputs, **rest),
        arrays,
        (c * taps + 1, k * taps, pixels, pixels),
    )


@settings(max_examples=tries(40))
@given(**CONVOLUTIONS, more=st.tuples(st.integers(0, 1), st.integers(0, 1)))
def test_deconvolution_is_chainers(n, c, k, size, ksize, stride, pad, dilate, groups, bias, dtype, seed, more):
    arrays = [
        normal(seed, n, *size, c * groups, dtype=dtype),
        channels_last(normal(seed + 1, c * groups, k, *ksize, dtype=dtype)),
        normal(seed + 2, k * groups, dtype=dtype),
    ][: 3 if bias else 2]
    outsize = tuple(
        s * (h - 1) + (r - 1) * dilate + 1 - 2 * p + min(m, s - 1)
        for h, r, s, p, m in zip(size, ksize, stride, pad, more, strict=True)
    )
    if min(outsize) <= 0:
        return
    rest = {"stride": stride, "pad": pad, "outsize": outsize if any(more) else None, "dilate": dilate, "groups": groups}
    taps, pixels = ksize[0] * ksize[1], n * (outsize[0] + 4) * (outsize[1] + 2)
    _assert_right(
        lambda *inputs: F.deconvolution_2d(*inputs, **rest),
        lambda *inputs: CF.deconvolution_2d(*inputs, **rest),
        arrays,
        (c * taps + 1, k * taps, pixels, pixels),
        roundings=2,  # a bias is added to what was rounded
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_after_a_convolution(dtype):
    arrays = [normal(0, 2, 6, 7, 8, dtype=dtype), channels_last(normal(1, 5, 8, 3, 3, dtype=dtype)), normal(2, 5)]

    def relu_of(*inputs):
        return CF.relu(CF.convolution_2d(*inputs, pad=1))

    y, gradients, dy = run(lambda *inputs: F.convolution_2d(*inputs, pad=1, relu=True), arrays)
    exact = _chainer(relu_of, arrays, dy)
    assert (y == 0).any()
    slack = 90 * EPS32 * 100
    for found, right in zip([y, *gradients], exact, strict=True):
        assert_rounded(found, right, arrays[2].dtype if right.ndim == 1 else dtype, slack)


def test_zeros_in_padded_channels_change_nothing():
    x, W = normal(0, 2, 6, 6, 3), channels_last(normal(1, 8, 3, 3, 3))
    padded = np.concatenate([x, np.zeros((2, 6, 6, 1), "f")], 3)
    y, (dx, dW), dy = run(F.convolution_2d, (x, W))
    y4, (dx4, dW4), _ = run(F.convolution_2d, (padded, W), dy)
    np.testing.assert_allclose(y4, y, atol=1e-5)
    np.testing.assert_allclose(dW4, dW, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx4[..., :3], dx, atol=1e-5)
    assert not dx4[..., 3].any()


def test_filters_in_chainers_order_are_copied_which_is_announced_once(caplog, monkeypatch):
    monkeypatch.setattr(announcements, "_said", set())
    x, W = normal(0, 2, 6, 6, 3), normal(1, 8, 3, 3, 3)
    with caplog.at_level(logging.WARNING, "mixprec"):
        y, (_, dW), dy = run(F.convolution_2d, (x, W))
        run(F.convolution_2d, (x, W))
    assert [record.name for record in caplog.records] == ["mixprec"]
    (message,) = caplog.messages
    assert message.startswith(
        "convolution_2d: W in the order (K, R, S, C / groups) is not C-contiguous, and is copied in every step, at "
    )
    expected, (_, dW_expected), _ = run(F.convolution_2d, (x, channels_last(W)), dy)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(dW, dW_expected)


def _normalized(seed, dtype, groups=1):
    """x, W, gamma, beta, add, running mean, running variance."""
    return [
        *(normal(seed, 3, 6, 5, 4, dtype=dtype), channels_last(normal(seed + 1, 8, 4 // groups, 3, 3, dtype=dtype))),
        *(normal(seed + 2, 8) + 1, normal(seed + 3, 8), normal(seed + 4, 3, 3, 3, 8, dtype=dtype), normal(seed + 5, 8)),
        np.abs(normal(seed + 6, 8)),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_taken_from_the_sums_of_a_convolution(dtype):
    x, W, gamma, beta, _, mean, variance = _normalized(0, dtype)
    running = [[mean, variance], [mean.copy(), variance.copy()]]

    def normalized(z, gamma, beta, running, sums=None):
        return F.batch_normalization(z, gamma, beta, running_mean=running[0], running_var=running[1], sums=sums)

    def with_sums(x, W, gamma, beta):
        z, sums = F.convolution_2d(x, W, statistics=True)
        return normalized(z, gamma, beta, running[0], sums)

    arrays = [x, W, gamma, beta]
    expected, gradients_expected, dy = run(
        lambda x, W, *rest: normalized(F.convolution_2d(x, W), *rest, running[1]), arrays
    )
    found, gradients, _ = run(with_sums, arrays, dy)
    # Sums before rounding may move single values to the next one.
    eps = 8 * EPS[dtype] if dtype != np.float32 else 2.0**-16
    for each, right in zip([found, *gradients], [expected, *gradients_expected], strict=True):
        assert each.dtype == right.dtype
        assert np.abs(wide(each) - wide(right)).max() <= eps * np.abs(wide(right)).max()
    np.testing.assert_allclose(running[0], running[1], rtol=eps)


class _Recorder:
    def __init__(self, primitives):
        self._primitives, self.calls = primitives, []

    def __getattr__(self, name):
        method = getattr(self._primitives, name)
        return lambda *args, **kwargs: self.calls.append(name) or method(*args, **kwargs)


WANTED = [
    ("x", ["conv_fprop", "conv_dgrad"]),
    ("W", ["conv_fprop", "conv_wgrad"]),
    ("b", ["conv_fprop", "bias_grad"]),
    ("xW", ["conv_fprop", "conv_wgrad", "conv_dgrad"]),
    ("xWb", ["conv_fprop", "conv_wgrad", "conv_dgrad", "bias_grad"]),
]


@pytest.mark.parametrize(("wanted", "calls"), WANTED)
def test_only_what_is_asked_for_is_computed(monkeypatch, wanted, calls):
    recorder = _Recorder(backends.primitives_of(normal(0, 1)))
    monkeypatch.setattr(backends, "_on_numpy", lambda: recorder)
    arrays = {"x": normal(0, 1, 4, 4, 2), "W": channels_last(normal(1, 3, 2, 3, 3)), "b": normal(2, 3)}
    inputs = [chainer.Variable(array, requires_grad=name in wanted) for name, array in arrays.items()]
    y = F.convolution_2d(*inputs)
    y.grad = np.ones_like(y.array)
    y.backward()
    assert recorder.calls == ["conv_form", *calls]
    assert [variable.grad is not None for variable in inputs] == [name in wanted for name in "xWb"]


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16])
def test_what_does_not_fit_becomes_inf_without_a_warning(dtype):
    large = np.full((1, 2, 2, 8), 60000 if dtype == np.float16 else 3e38, dtype)
    assert np.isposinf(F.convolution_2d(large, np.full((1, 8, 1, 1), 2, dtype)).array.astype("f")).all()


def _filters(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


MESSAGES = [
    (
        lambda x: F.convolution_2d(x((2, 16, 8, 8)), _filters(4, 16, 3, 3)),
        ValueError,
        "convolution_2d: x must be (N, H, W, 16); found shape (2, 16, 8, 8), which looks like (N, C, H, W): "
        "use to_nhwc()",
    ),
    (
        lambda x: F.convolution_2d(x((2, 9, 9, 12)), _filters(4, 4, 3, 3), groups=2),
        ValueError,
        "convolution_2d: x must be (N, H, W, 8); found shape (2, 9, 9, 12)",
    ),
    (
        lambda x: F.convolution_2d(x((2, 8, 8, 8)), _filters(3, 4, 3, 3), groups=2),
        ValueError,
        "convolution_2d: 2 groups do not divide the 3 filters of W (3, 4, 3, 3)",
    ),
    (
        lambda x: F.convolution_2d(x((2, 8, 8, 4)), _filters(3, 4)),
        ValueError,
        "convolution_2d: W must be (K, C / groups, R, S); found shape (3, 4)",
    ),
    (
        lambda x: F.convolution_2d(x((2, 4, 4, 3)), _filters(4, 3, 7, 7), pad=1),
        ValueError,
        "convolution_2d: x (2, 4, 4, 3) with pad (1, 1) is smaller than the filters, W (4, 3, 7, 7)",
    ),
    (
        lambda x: F.convolution_2d(x((2, 8, 8, 4)), _filters(3, 4, 3, 3, dtype=np.float16)),
        TypeError,
        "convolution_2d: W must have the dtype of x, float32; found float16: use cast()",
    ),
    (
        lambda x: F.convolution_2d(x((2, 8, 8, 4), np.float64), _filters(3, 4, 3, 3)),
        TypeError,
        "convolution_2d: x must be float16, bfloat16 or float32; found float64",
    ),
    (
        lambda x: F.convolution_2d(x((2, 8, 8, 4)), _filters(3, 4, 3, 3), _filters(4)),
        ValueError,
        "convolution_2d: b must have shape (3,); found (4,)",
    ),
    (
        lambda x: F.deconvolution_2d(x((2, 8, 8, 4)), _filters(4, 3, 3, 3), stride=2, outsize=(30, 17)),
        ValueError,
        "deconvolution_2d: an output of (30, 17) pixels does not belong to x (2, 8, 8, 4) and W (4, 3, 3, 3) with "
        "stride (2, 2) and pad (0, 0)",
    ),
    (
        lambda x: F.convolution_2d(x((2, 8, 8, 4)), _filters(3, 4, 3, 3), relu=True, statistics=True),
        ValueError,
        "convolution_2d: statistics are taken before a ReLU: relu and statistics exclude each other",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call(lambda shape, dtype=np.float32: np.zeros(shape, dtype))
    assert str(caught.value) == message
