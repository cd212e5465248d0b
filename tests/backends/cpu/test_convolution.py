"""Convolutions of the primitives on NumPy's arrays, by NumPy and by the native library, beside Chainer's in float64."""

import tracemalloc
import warnings
from unittest import mock

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cpu import convolution as host
from mixprec.backends.geometry import Convolution
from tests.backends.primitive_cases import (
    FLOAT16,
    FLOAT32,
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    exact,
    seeds,
    storage_dtypes,
)
from tests.cases import tries

pairs = {"stride": st.integers(1, 3), "pad": st.integers(0, 3), "dilation": st.integers(1, 2)}


@st.composite
def convolutions(draw, depthwise=False):
    """A :class:`Convolution`, a shape (N, H, W, C) and one of a filter (K, R, S, C / groups), which fits."""
    attributes = {name: draw(st.tuples(values, values)) for name, values in pairs.items()}
    if draw(st.integers(0, 3)) == 0:
        filter_size, attributes["pad"] = (1, 1), (0, 0)
    else:
        filter_size = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    height, width = (
        draw(st.integers(max(1, (size - 1) * dilation + 1 - 2 * pad), 14))
        for size, pad, dilation in zip(filter_size, attributes["pad"], attributes["dilation"], strict=True)
    )
    groups = draw(st.integers(1, 20) if depthwise else st.sampled_from([1, 1, 1, 2, 3, 8]))
    c, k = (
        (1, 1)
        if depthwise
        else draw(st.tuples(*2 * [st.sampled_from([1, 2, 3, 5, 8, 13, 32] if groups < 8 else [1, 3])]))
    )
    shape = (draw(st.integers(1, 3)), height, width, groups * c)
    return Convolution(**attributes, groups=groups), shape, (groups * k, *filter_size, c)


cases = st.one_of(convolutions(), convolutions(), convolutions(depthwise=True))
limits = st.sampled_from([1, 1 << 14, host.LIMIT])  # single rows, a few of them, everything at once
POINTWISE_WITH_PADDING = Convolution((2, 2), (1, 1)), (2, 5, 6, 3), (4, 1, 1, 3)


def chainers(x, w, dy, convolution):
    """Returns (y, dx, dw) in float64, in our layout; ``dy=None`` for y alone."""
    attributes = {name: getattr(convolution, name) for name in ("stride", "pad", "groups")}
    x, w = (chainer.Variable(np.ascontiguousarray(exact(array).transpose(0, 3, 1, 2))) for array in (x, w))
    with np.errstate(invalid="ignore"):
        y = F.convolution_2d(x, w, dilate=convolution.dilation, **attributes)
        results = [y]
        if dy is not None:
            results += chainer.grad([y], [x, w], [chainer.Variable(exact(dy).transpose(0, 3, 1, 2))])
    return [result.array.transpose(0, 2, 3, 1) for result in results]


def out_shape(shape, w_shape, convolution):
    return (shape[0], *convolution.out_size(shape[1:3], w_shape[1:3]), w_shape[0])


def counts(y_shape, w_shape, convolution):
    """Returns the numbers of products in an element of y, dx and dw, at most."""
    k, r, s, c = w_shape
    return r * s * c, r * s * k // convolution.groups, y_shape[0] * y_shape[1] * y_shape[2]


def bounds(x, w, dy, convolution):
    """Returns what accumulation in float32 may add to the error of (y, dx, dw)."""
    sums = chainers(*(np.abs(exact(array)) for array in (x, w, dy)), convolution)
    return [accumulated(*pair) for pair in zip(counts(dy.shape, w.shape, convolution), sums, strict=True)]


def drawn(case, dtype, seed):
    """Returns x, w, dy of a case."""
    convolution, shape, w_shape = case
    rng = np.random.default_rng(seed)
    return [arrays(rng, some, dtype) for some in (shape, w_shape, out_shape(shape, w_shape, convolution))]


# --- all shapes


def check(primitives, case, dtype, seed):
    """Checks all three convolutions of a case."""
    convolution, shape, w_shape = case
    x, w, dy = drawn(case, dtype, seed)
    found = [
        primitives.conv_fprop(x, w, convolution),
        primitives.conv_dgrad(dy, w, convolution, shape),
        primitives.conv_wgrad(x, dy, convolution, w_shape),
    ]
    for ours, theirs, bound in zip(found, chainers(x, w, dy, convolution), bounds(x, w, dy, convolution), strict=True):
        assert ours.flags.c_contiguous
        assert_close(ours, theirs, dtype, bound)


@settings(max_examples=tries(150))
@given(case=cases, dtype=storage_dtypes, seed=seeds, limit=limits)
@example(case=POINTWISE_WITH_PADDING, dtype=FLOAT16, seed=0, limit=host.LIMIT)
def test_against_float64(anywhere, case, dtype, seed, limit):
    with mock.patch.object(host, "LIMIT", limit):
        check(anywhere, case, dtype, seed)


@settings(max_examples=tries(60))
@given(case=cases, dtype=storage_dtypes, seed=seeds, relu=st.booleans(), wide_bias=st.booleans())
def test_bias_and_relu(primitives, case, dtype, seed, relu, wide_bias):
    convolution = case[0]
    x, w, _ = drawn(case, dtype, seed)
    b = arrays(np.random.default_rng(seed + 1), len(w), FLOAT32 if wide_bias else dtype, scale=3.0)
    (expected,) = chainers(x, w, None, convolution)
    (magnitude,) = chainers(abs(exact(x)), abs(exact(w)), None, convolution)
    bound = accumulated(w[0].size + 1, magnitude + abs(exact(b)))
    expected = expected + exact(b)
    expected = np.maximum(expected, 0) if relu else expected
    assert_close(primitives.conv_fprop(x, w, convolution, b, relu=relu), expected, dtype, bound)


@settings(max_examples=tries(60))
@given(case=cases, dtype=storage_dtypes, seed=seeds, limit=limits, biased=st.booleans())
def test_statistics(primitives, case, dtype, seed, limit, biased):
    """Sums and sums of squares of what is not yet rounded; y is the same with them and without, by NumPy."""
    convolution = case[0]
    x, w, _ = drawn(case, dtype, seed)
    b = arrays(np.random.default_rng(seed + 1), len(w), FLOAT32) if biased else None
    with mock.patch.object(host, "LIMIT", limit):
        y, sums = primitives.conv_fprop(x, w, convolution, b, statistics=True)
        alone = primitives.conv_fprop(x, w, convolution, b)
    (expected,) = chainers(x, w, None, convolution)
    (magnitude,) = chainers(abs(exact(x)), abs(exact(w)), None, convolution)
    offset = exact(b) if biased else 0.0
    expected = expected + offset
    error = accumulated(w[0].size + 1, magnitude + abs(offset))
    assert_close(y, expected, dtype, error)
    if primitives is PRIMITIVES:
        np.testing.assert_array_equal(y, alone)
    axes, rows = (0, 1, 2), y.size // len(w)
    squares = 2 * abs(expected) * error + error**2
    bound = [
        error.sum(axes) + accumulated(rows, (abs(expected) + error).sum(axes)),
        squares.sum(axes) + accumulated(rows + 1, (expected**2 + squares).sum(axes)),
    ]
    assert_close(sums, [expected.sum(axes), (expected**2).sum(axes)], FLOAT32, bound)


@settings(max_examples=tries(40))
@given(case=cases, dtype=storage_dtypes, seed=seeds, limit=limits, surplus=st.integers(1, 5))
def test_channels_of_zeros_beyond_the_filter(anywhere, case, dtype, seed, limit, surplus):
    convolution, shape, w_shape = case
    convolution = Convolution(convolution.stride, convolution.pad, convolution.dilation)  # not in groups
    w_shape = (*w_shape[:3], shape[3])
    x, w, dy = drawn((convolution, shape, w_shape), dtype, seed)
    wider = np.concatenate([x, np.zeros((*shape[:3], surplus), dtype)], 3)
    y, dx, dw = chainers(x, w, dy, convolution)
    y_bound, dx_bound, dw_bound = bounds(x, w, dy, convolution)
    with mock.patch.object(host, "LIMIT", limit):
        assert_close(anywhere.conv_fprop(wider, w, convolution), y, dtype, y_bound)
        assert_close(anywhere.conv_wgrad(wider, dy, convolution, w_shape), dw, dtype, dw_bound)
        found = anywhere.conv_dgrad(dy, w, convolution, wider.shape)
    assert_close(found[..., : shape[3]], dx, dtype, dx_bound)
    assert not found[..., shape[3] :].any()


@settings(max_examples=tries(40))
@given(case=cases, dtype=storage_dtypes, seed=seeds, biased=st.booleans())
def test_deconvolution(anywhere, case, dtype, seed, biased):
    """Beside Chainer's; a bias is added to what has been rounded."""
    convolution, shape, _ = case
    _, w, x = drawn(case, dtype, seed)
    b = arrays(np.random.default_rng(seed + 1), shape[3], FLOAT32) if biased else None
    y = anywhere.deconv_fprop(x, w, convolution, shape, b)
    attributes = {name: getattr(convolution, name) for name in ("stride", "pad", "groups")}

    def deconvolution(x, w):
        x, w = (exact(array).transpose(0, 3, 1, 2) for array in (x, w))
        size = shape[1:3]
        y = F.deconvolution_2d(x, w, outsize=size, dilate=convolution.dilation, **attributes)
        return y.array.transpose(0, 2, 3, 1)

    expected, offset = deconvolution(x, w), exact(b) if biased else 0.0
    bound = accumulated(w.size // w.shape[3] // convolution.groups, deconvolution(abs(exact(x)), abs(exact(w))))
    if biased:  # two roundings
        eps, tiny = float(np.spacing(dtype.type(1))) / 2, float(np.nextafter(dtype.type(0), dtype.type(1)))
        bound = bound + eps * (abs(expected) + bound) + tiny + 2.0**-24 * abs(offset)
    assert_close(y, expected + offset, dtype, bound)


# --- edges


@pytest.mark.parametrize("x_shape", [(1, 2, 2, 3), (1, 1, 8, 3), (0, 2, 2, 3)])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_filter_larger_than_the_image_is_an_error(primitives, x_shape, groups):
    x, w = np.zeros(x_shape, np.float32), np.zeros((6, 3, 3, 3 // groups), np.float32)
    with pytest.raises(ValueError, match=r"^conv_fprop: the filter is larger than the input$"):
        primitives.conv_fprop(x, w, Convolution(groups=groups))
    assert primitives.conv_fprop(x, w, Convolution(pad=(1, 1), groups=groups)).shape == (*x_shape[:3], 6)


@pytest.mark.parametrize("groups", [1, 6])
def test_nothing_comes_of_no_images(primitives, groups):
    convolution = Convolution(pad=(1, 1), groups=groups)
    x, w, dy = drawn((convolution, (0, 5, 5, 6), (6, 3, 3, 6 // groups)), FLOAT16, 0)
    y, sums = primitives.conv_fprop(x, w, convolution, statistics=True)
    assert y.shape == (0, 5, 5, 6)
    assert not sums.any()
    assert primitives.conv_dgrad(dy, w, convolution, x.shape).shape == x.shape
    dw = primitives.conv_wgrad(x, dy, convolution, w.shape)
    assert dw.shape == w.shape
    assert not dw.any()


@pytest.mark.parametrize(("groups", "dtype"), list(zip((1, 2, 4), STORAGE, strict=True)), ids=str)
def test_overflow_is_inf_without_a_warning(primitives, dtype, groups):
    """Of the result in float32, and of its rounding; every element has the same sign."""
    convolution = Convolution(pad=(1, 1), groups=groups)
    largest = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38}[dtype.name]
    x, dy = np.full((2, 2, 5, 5, 4), largest, dtype)
    w = np.full((4, 3, 3, 4 // groups), 60, dtype)
    w[0] = -60
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y, sums = primitives.conv_fprop(x, w, convolution, statistics=True)
        dw = primitives.conv_wgrad(x, dy, convolution, w.shape)
        dx = primitives.conv_dgrad(dy, abs(w), convolution, x.shape)
    assert (y[..., 0] == -np.inf).all()
    assert (y[..., 1:] == np.inf).all()
    assert (dx == np.inf).all()
    assert (dw == np.inf).all()
    if dtype != FLOAT16:
        assert (sums[1] == np.inf).all()


@pytest.mark.parametrize(
    ("groups", "dtype", "bad"), [(1, FLOAT16, np.inf), (2, FLOAT32, np.nan), (4, STORAGE[1], -np.inf)], ids=str
)
def test_what_is_not_finite_goes_where_it_is_seen_and_nowhere_else(primitives, dtype, groups, bad):
    convolution = Convolution((2, 1), (1, 2), (1, 2), groups)
    x, w, dy = drawn((convolution, (2, 8, 9, 4), (4, 3, 3, 4 // groups)), dtype, 0)
    finite = x.copy(), dy.copy()
    x[1, 4, 5, 1] = bad
    dy[0, 1, 2, 3] = bad
    y, _, dw = chainers(x, w, finite[1], convolution)
    _, dx, _ = chainers(finite[0], w, dy, convolution)
    y_bound, dx_bound, dw_bound = bounds(*finite[:1], w, finite[1], convolution)
    for array in (y, dx, dw):
        assert not np.isfinite(array).all()
        assert np.isfinite(array).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(primitives.conv_fprop(x, w, convolution), y, dtype, y_bound)
        assert_close(primitives.conv_dgrad(dy, w, convolution, x.shape), dx, dtype, dx_bound)
        assert_close(primitives.conv_wgrad(x, finite[1], convolution, w.shape), dw, dtype, dw_bound)
        kept = primitives.conv_fprop(x, w, convolution, relu=True)
    np.testing.assert_array_equal(np.isnan(kept), np.isnan(y))


# --- long sums


@pytest.mark.slow
@pytest.mark.parametrize(
    ("w_shape", "groups", "dtype"), [((3, 1, 1, 2), 1, FLOAT16), ((2, 1, 3, 1), 2, FLOAT32)], ids=["dense", "depthwise"]
)
def test_a_gradient_of_millions_of_products(primitives, dtype, w_shape, groups):
    """3.2 million of mean 100: far beyond float16, whose own sums would stop at 2**11 times the first product."""
    convolution = Convolution(pad=(0, w_shape[2] // 2), groups=groups)
    shape = (5, 800, 800, 2)
    rng = np.random.default_rng(0)
    x = arrays(rng, shape, dtype, mean=10.0)
    dy = arrays(rng, (*shape[:3], w_shape[0]), dtype, mean=10.0) / dtype.type(512)
    dw = primitives.conv_wgrad(x, dy, convolution, w_shape)
    wide, gradient = exact(x), exact(dy)
    padded = np.pad(wide, [(0, 0), (0, 0), (convolution.pad[1],) * 2, (0, 0)])
    taps = [padded[:, :, s : s + shape[2]].reshape(-1, 2) for s in range(w_shape[2])]
    gradient = gradient.reshape(-1, w_shape[0])
    if groups == 1:
        expected = np.stack([gradient.T @ tap for tap in taps], 1)
    else:
        expected = np.stack([(gradient * tap).sum(0) for tap in taps], 1)[:, :, None]
    expected = expected.reshape(w_shape)  # all products are positive, or nearly: the sum of their absolute values
    assert_close(dw, expected, dtype, accumulated(len(gradient), expected))
    assert_close(dw, expected, dtype, 1e-4 * expected)  # partial sums err much less than that bound


@pytest.mark.slow
def test_sums_of_millions_for_a_batch_normalization(primitives):
    """Mean and variance come out as those of the float32 output of the convolution."""
    rng = np.random.default_rng(0)
    x = arrays(rng, (5, 800, 800, 2), FLOAT16, mean=10.0)
    w = np.eye(2, dtype=np.float16).reshape(2, 1, 1, 2)
    _, sums = primitives.conv_fprop(x, w, Convolution(), statistics=True)
    wide = exact(x).reshape(-1, 2)
    np.testing.assert_allclose(sums, [wide.sum(0), (wide**2).sum(0)], rtol=1e-6)


# --- memory, and the number of products


def test_no_loop_over_images():
    """A batch of layers of ResNet-50 at 64x64 pixels takes one part."""
    for size, row_size in ((16, 16 * (9 * 64 + 64)), (8, 8 * (9 * 128 + 128)), (2, 2 * (9 * 512 + 512))):
        assert len(list(host.parts_of(8, size, row_size))) == 1


@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_memory_does_not_grow_with_the_filter(primitives, dtype, groups):
    """All columns would be 49 times the input."""
    convolution = Convolution(pad=(3, 3), groups=groups)
    x, w, dy = drawn((convolution, (4, 64, 64, 16), (16, 7, 7, 16 // groups)), dtype, 0)
    tracemalloc.start()
    try:
        with mock.patch.object(host, "LIMIT", 1 << 18):
            for primitive, *arguments in (
                (primitives.conv_fprop, x, w, convolution),
                (primitives.conv_dgrad, dy, w, convolution, x.shape),
                (primitives.conv_wgrad, x, dy, convolution, w.shape),
            ):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                primitive(*arguments)
                _, peak = tracemalloc.get_traced_memory()
                assert peak - before <= 2 * x.size * 4  # the result, and an image or a few rows with what they need
    finally:
        tracemalloc.stop()


# --- layers of networks


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize(
    ("convolution", "shape", "w_shape"),
    [
        (Convolution((2, 2), (3, 3)), (2, 64, 64, 3), (64, 7, 7, 3)),
        (Convolution(), (2, 16, 16, 64), (256, 1, 1, 64)),
        (Convolution(pad=(1, 1)), (2, 16, 16, 64), (64, 3, 3, 64)),
        (Convolution((2, 2), (1, 1)), (2, 16, 16, 128), (128, 3, 3, 128)),
        (Convolution((2, 2)), (2, 16, 16, 256), (512, 1, 1, 256)),
        (Convolution(pad=(1, 1)), (2, 2, 2, 512), (512, 3, 3, 512)),
        (Convolution((2, 2), (1, 1), groups=32), (2, 16, 16, 256), (256, 3, 3, 8)),
        (Convolution((2, 2), (1, 1), groups=96), (2, 16, 16, 96), (96, 3, 3, 1)),
    ],
    ids=["stem", "1x1", "3x3", "3x3/2", "1x1/2", "last", "resnext", "depthwise"],
)
def test_layers(primitives, convolution, shape, w_shape, dtype):
    check(primitives, (convolution, shape, w_shape), dtype, 0)
