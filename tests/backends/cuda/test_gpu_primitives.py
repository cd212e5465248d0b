"""The primitives on CUDA beside NumPy's: on a GPU by ``pytest -m gpu``, and the same tests on the host's stand-ins.

What is not known of cuDNN comes first: if one of those tests fails, it says what cuDNN does, and the rest may not mean
much until the backend knows. Tests of small arrays that need no cuDNN have ``own_kernels`` in their names:
``scripts/sanitize.py`` runs them.
"""

import inspect
import itertools
import json
import math
import re
from unittest import mock

import numpy as np
import pytest

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cuda import batch_norm, operations
from mixprec.backends.cuda.stem import folds_of
from mixprec.backends.cudnn import search
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.geometry import BatchNorm, Convolution, LocalResponseNorm, Pooling
from mixprec.backends.primitives import Primitives
from tests.backends import batches_with_factors
from tests.backends.cpu.test_convolution import counts, drawn
from tests.backends.cuda.gpu_cases import (
    BATCH_NORMS,
    CONVOLUTIONS,
    LARGE_BATCH_NORMS,
    RESNET50,
    REST,
    SMALL,
    every_primitive,
)
from tests.backends.primitive_cases import (
    BFLOAT16,
    EPS32,
    FLOAT16,
    FLOAT32,
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    batch_norm_gradients,
    batch_norm_moments,
    batch_norm_output,
    binary_cross_entropy,
    binary_cross_entropy_bounds,
    channel_parameters,
    convolved_and_normalized,
    eps_of,
    exact,
    given_moments,
    labels,
    local_response_norm,
    mixed_labels,
    softmax_cross_entropy,
    softmax_cross_entropy_bounds,
    tiny_of,
)
from tests.stand_ins import fake_cudnn
from tests.stand_ins.cuda_on_host import ENGINES, engine
from tests.stand_ins.cuda_sides import OnGpu, OnHost, both_sides, on_devices

THREE = Convolution((1, 1), (1, 1))
X, W = (2, 6, 5, 16), (24, 3, 3, 16)
dtypes = pytest.mark.parametrize("dtype", STORAGE, ids=str)


@pytest.fixture(scope="module")
def host():
    return OnHost()


@pytest.fixture(scope="module")
def gpu():
    device = OnGpu()
    yield device
    device.close()


@pytest.fixture
def side(request):
    """The host or the GPU, as the parameter says; for each test, so that pytest leaves them in this order."""
    return request.getfixturevalue(request.param)


def primitives_on(side, dtype):
    """Yields names and calls of all primitives; images are large enough on a GPU for engines that need a workspace."""
    return every_primitive(side.cuda, side.send, dtype, *(((8, 28, 28, 64), 128) if side.is_gpu else (X, W[0])))


def same(found, expected):
    """Asserts that arrays are equal, but for what NaN are made of and the sign of 0."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(exact(found), exact(expected))


def same_bits(found, expected, name):
    """Asserts that arrays of two tuples are equal bit for bit."""
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        first, second = (np.frombuffer(array.tobytes(), np.uint8) for array in (one, other))
        np.testing.assert_array_equal(first, second, err_msg=f"{name}, result {place}")


# --- what is not known of cuDNN


@both_sides
@pytest.mark.parametrize("shape", [(2, 3, 3, 16), (3, 5, 7, 8), (1, 2, 1, 8)])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_a_mask_has_a_bit_for_each_element(side, shape, dtype):
    """In the order of memory, the lowest bit first, as the fake cuDNN has it; and it fits where it is put.

    The backend depends on nothing but that it fits: CUDNN_MASK_DTYPE has a byte for each element.
    """
    side.need_cudnn()
    rng = np.random.default_rng(0)
    x, add = arrays(rng, (2, *shape), dtype)
    operation = operations.batch_norm(shape, dtype, BatchNorm(relu=True), add=True)
    parameters = tuple(np.ones((4, shape[-1]), np.float32))
    found = []
    for filling in (0x00, 0xFF):
        inputs = side.send((x, *parameters, add))
        outputs = side.send((x, *parameters, np.full(8 * x.size + 4096, filling, np.uint8)))
        side.cuda.cudnn.plan(operation).run(*map(side.cuda._address, (*inputs, *outputs)))
        y, *_, mask = side.receive(outputs)
        found.append(mask)
    written = found[0] == found[1]
    assert written.any(), "cuDNN writes no mask"
    size = written.nonzero()[0].max() + 1
    assert size <= x.size * batch_norm.CUDNN_MASK_DTYPE.itemsize, f"cuDNN writes {size} bytes for {x.size} elements"
    assert _packing(found[0], size, exact(y) > 0) == "a bit each, low bit first, NHWC"


def _packing(mask, size, is_open):
    """Says in which form a mask of ``size`` bytes has what is open (N, H, W, C)."""
    for order, flat in {"NHWC": is_open.reshape(-1), "NCHW": np.moveaxis(is_open, -1, 1).reshape(-1)}.items():
        if size == flat.size and np.array_equal(mask[:size] != 0, flat):
            return f"a byte each, {order}, {sorted(set(mask[:size].tolist()))}"
        for name, bits in {"low": "little", "high": "big"}.items():
            packed = np.packbits(flat, bitorder=bits)
            if size == len(packed) and np.array_equal(mask[:size], packed):
                return f"a bit each, {name} bit first, {order}"
    shown = np.packbits(is_open.reshape(-1), bitorder="little")[:16].tobytes().hex()
    return f"unknown: {size} bytes, {mask[:16].tobytes().hex()}... where packed bits would be {shown}..."


@both_sides
@pytest.mark.parametrize("shape", [(2, 1, 1, 8), (2, 2, 3, 16)])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_the_running_variance_of_cudnn_is_unbiased(side, shape, dtype):
    """Or not; then CUDNN_VARIANCE_IS_UNBIASED is to be False, and a kernel moves it."""
    side.need_cudnn()
    x = arrays(np.random.default_rng(0), shape, dtype, 2.0)
    moments, count = batch_norm_moments(x, 0.0), math.prod(shape[:-1])
    operation = operations.batch_norm(shape, dtype, BatchNorm(eps=1e-3, decay=0.25), add=False)
    parameters = tuple(np.ones((4, shape[-1]), np.float32))
    outputs = side.send((x, *parameters))
    inputs = side.send((x, *parameters))
    side.cuda.cudnn.plan(operation).run(*map(side.cuda._address, (*inputs, *outputs)))
    *_, moved_mean, moved_variance = side.receive(outputs)
    np.testing.assert_allclose(moved_mean, 0.25 + 0.75 * moments.mean, rtol=1e-4, atol=1e-5)
    matching = [
        is_unbiased
        for is_unbiased in (False, True)
        if np.allclose(moved_variance, 0.25 + 0.75 * moments.variance * count / (count - is_unbiased), rtol=1e-3)
    ]
    assert matching == [batch_norm.CUDNN_VARIANCE_IS_UNBIASED], f"{moved_variance} of {moments.variance}"


@both_sides
@pytest.mark.parametrize("add", [False, True])
def test_running_statistics_move_once_where_they_lie(side, add):
    """Both are input and output of one graph, whose blocks run in any order; 50 times, where many share a channel.

    A plan tries that before it relies on it, and else has copies.
    """
    side.need_cudnn()
    shape = (256, 56, 56, 64) if side.is_gpu else (2, 3, 3, 16)
    rng = np.random.default_rng(0)
    x, other = side.send(tuple(arrays(rng, (2, *shape), FLOAT16)))
    ones, apart, running, saved = (tuple(np.full((2, shape[-1]), 12.0, np.float32)) for _ in range(4))
    ones, apart, running, saved = map(side.send, (ones, apart, running, saved))
    plan = side.fresh().cudnn.plan(operations.batch_norm(shape, FLOAT16, BatchNorm(relu=add, decay=0.5), add=add))
    y, mask = side.send((np.zeros(shape, FLOAT16), np.zeros(shape, np.bool_)))

    def run(moved):
        arrays_ = (x, *ones, *running, *[other] * add, y, *saved, *moved, *[mask] * add)
        plan.run(*map(side.cuda._address, arrays_))

    run(apart)
    expected = side.receive(apart)
    for _ in range(50):
        for array in running:
            side.write(array, np.full(shape[-1], 12.0, np.float32))
        run(running)
        for found, wanted in zip(side.receive(running), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


@both_sides
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_what_is_in_the_workspace_does_not_matter(side, deterministic, dtype):
    """Zeros or 0xFF, NaN and -1: to the bit if an engine always gives the same bits, else but for another order."""
    side.need_cudnn()
    cudnn.configure(deterministic=deterministic)
    used = set()
    for name, call in primitives_on(side, dtype):
        found = []
        for byte in (0x00, 0xFF):
            with side.workspaces_of(byte) as sizes:
                found.append(side.receive(tuple(call())))
            used.update(sizes)
        if deterministic:
            same_bits(*found, name)
            continue
        for first, second in zip(*(map(exact, arrays_) for arrays_ in found), strict=True):
            tolerance = (1e-2 if dtype == FLOAT16 else 1e-4) * np.abs(first).max()
            np.testing.assert_allclose(second, first, rtol=0, atol=tolerance, err_msg=name)
    assert used or (dtype == FLOAT32 and not side.is_gpu), "no plan has a workspace: nothing was tested"


# --- convolutions and linear layers


def products(x, w, dy, convolution):
    """Returns (y, dx, dw) by NumPy, in float64."""
    x, w, dy = map(exact, (x, w, dy))
    return (
        PRIMITIVES.conv_fprop(x, w, convolution),
        PRIMITIVES.conv_dgrad(dy, w, convolution, x.shape),
        PRIMITIVES.conv_wgrad(x, dy, convolution, w.shape),
    )


def product_bounds(x, w, dy, convolution):
    """Returns what accumulation in float32 may add to the errors of these."""
    sums = products(*(np.abs(exact(array)) for array in (x, w, dy)), convolution)
    return [accumulated(*pair) for pair in zip(counts(dy.shape, w.shape, convolution), sums, strict=True)]


def check_convolutions(side, cuda, case, dtype):
    convolution, shape, w_shape = case
    x, w, dy = drawn(case, dtype, 0)
    if w_shape[3] * convolution.groups < shape[3]:
        x[..., w_shape[3] :] = 0
    on_device = side.send((x, w, dy))
    found = (
        cuda.conv_fprop(*on_device[:2], convolution),
        cuda.conv_dgrad(*on_device[:0:-1], convolution, shape),
        cuda.conv_wgrad(on_device[0], on_device[2], convolution, w_shape),
    )
    expected, bounds = products(x, w, dy, convolution), product_bounds(x, w, dy, convolution)
    for ours, theirs, bound in zip(side.receive(found), expected, bounds, strict=True):
        assert_close(ours, theirs, dtype, bound)


@both_sides
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("channels", [3, 4])
def test_first_convolutions_on_folded_images(side, channels, dtype):
    side.need_cudnn()
    cudnn.configure(autotune="measure", cache=None)
    convolution, shape, w_shape = Convolution((2, 2), (3, 3)), (2, 20, 28, channels), (16, 7, 7, channels)
    x, w, dy = drawn((convolution, shape, w_shape), dtype, 0)
    (y, _, dw), (y_bound, _, dw_bound) = products(x, w, dy, convolution), product_bounds(x, w, dy, convolution)
    on_device = side.send((x, w, dy))
    folds = [*itertools.chain(*folds_of(shape, w_shape, x.dtype, convolution))]
    assert len(folds) == 2
    for _, way in side.cuda._stem_fprop_candidates(folds, x.dtype, None, False):
        assert_close(side.receive(way(*on_device[:2], None)), y, dtype, y_bound)
    for _, way in side.cuda._stem_wgrad_candidates(folds, dy.shape, w_shape, x.dtype):
        assert_close(side.receive(way(on_device[0], on_device[2])), dw, dtype, dw_bound)


@on_devices(SMALL, RESNET50)
def test_convolutions_of_float16(side, case):
    side.need_cudnn()
    check_convolutions(side, side.cuda, CONVOLUTIONS[case], FLOAT16)


@on_devices(SMALL, REST)
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
def test_convolutions_of_other_dtypes(side, case, dtype):
    side.need_cudnn()
    check_convolutions(side, side.cuda, CONVOLUTIONS[case], dtype)


@on_devices(["3x3", "channels no multiple of 8", "3x3/2"], [list(RESNET50)[2]])
@dtypes
@pytest.mark.parametrize("relu", [False, True])
def test_what_is_around_a_convolution(side, case, dtype, relu):
    """Bias and ReLU behind it, or statistics."""
    side.need_cudnn()
    convolution = CONVOLUTIONS[case][0]
    x, w, dy = drawn(CONVOLUTIONS[case], dtype, 1)
    b = arrays(np.random.default_rng(2), len(w), dtype)
    sent_x, sent_w, sent_b = side.send((x, w, b))
    (y, *_), (y_bound, *_) = products(x, w, dy, convolution), product_bounds(x, w, dy, convolution)
    found = side.cuda.conv_fprop(sent_x, sent_w, convolution, sent_b, relu=relu)
    # An engine that fuses no bias rounds before it is added, and an own kernel rounds again.
    bound = y_bound + accumulated(1, np.abs(exact(b)))
    bound = bound + eps_of(dtype) * (np.abs(y) + bound) + 2 * tiny_of(dtype)
    expected = y + exact(b)
    assert_close(side.receive(found), np.maximum(expected, 0) if relu else expected, dtype, bound)
    found, sums = side.receive(side.cuda.conv_fprop(sent_x, sent_w, convolution, statistics=True))
    assert_close(found, y, dtype, y_bound)
    flat = y.reshape(-1, len(w))
    error = y_bound.reshape(flat.shape) + eps_of(dtype) * np.abs(flat) + tiny_of(dtype)  # perhaps of what is rounded
    squares = 2 * np.abs(flat) * error + error**2
    count = len(flat) + 8
    assert_close(sums[0], flat.sum(0), FLOAT32, error.sum(0) + accumulated(count, (np.abs(flat) + error).sum(0)))
    assert_close(sums[1], (flat**2).sum(0), FLOAT32, squares.sum(0) + accumulated(count, (flat**2 + squares).sum(0)))


@both_sides
@dtypes
def test_deconvolution(side, dtype):
    side.need_cudnn()
    convolution, y_shape, w_shape = Convolution((2, 2), (1, 1)), (2, 9, 7, 8), (16, 3, 3, 8)
    _, w, x = drawn((convolution, y_shape, w_shape), dtype, 0)
    b = arrays(np.random.default_rng(1), 8, FLOAT32)
    found = side.receive(side.cuda.deconv_fprop(*side.send((x, w)), convolution, y_shape, side.send(b)))
    y = PRIMITIVES.conv_dgrad(exact(x), exact(w), convolution, y_shape)
    terms = PRIMITIVES.conv_dgrad(np.abs(exact(x)), np.abs(exact(w)), convolution, y_shape)
    bound = accumulated(16 * 9 + 1, terms + np.abs(exact(b)))
    bound = bound + eps_of(dtype) * (np.abs(y) + bound) + 2 * tiny_of(dtype)  # rounded twice
    assert_close(found, y + exact(b), dtype, bound)


@both_sides
@dtypes
@pytest.mark.parametrize("sizes", [(7, 64, 10), (33, 17, 5), (1, 2048, 1000)], ids=str)
def test_linear(side, dtype, sizes):
    side.need_cudnn()
    batch, inputs, outputs = sizes
    rng = np.random.default_rng(0)
    x, w, dy = (arrays(rng, shape, dtype) for shape in ((batch, inputs), (outputs, inputs), (batch, outputs)))
    b = arrays(rng, outputs, dtype)
    sent_x, sent_w, sent_dy, sent_b = side.send((x, w, dy, b))
    y, dx, dw = side.receive(
        (
            side.cuda.linear(sent_x, sent_w, sent_b),
            side.cuda.linear_dgrad(sent_dy, sent_w),
            side.cuda.linear_wgrad(sent_x, sent_dy),
        )
    )
    x, w, dy, b = map(exact, (x, w, dy, b))
    assert_close(y, x @ w.T + b, dtype, accumulated(inputs + 1, np.abs(x) @ np.abs(w).T + np.abs(b)))
    assert_close(dx, dy @ w, dtype, accumulated(outputs, np.abs(dy) @ np.abs(w)))
    assert_close(dw, dy.T @ x, dtype, accumulated(batch, np.abs(dy).T @ np.abs(x)))


# --- batch normalization


def without_doubt(dy, before, bound):
    """The gradient with zeros where the sign of the ReLU's input is within its error bound."""
    return np.where(np.abs(before) <= bound, 0, dy).astype(dy.dtype)


def check_gradients(found, dy, before, x, gamma, mean, invstd, attributes, add, constant=False):
    dx, dgamma, dbeta, dadd = found
    gradient = exact(dy) * (before > 0) if attributes.relu else exact(dy)
    expected = batch_norm_gradients(gradient, x, gamma, mean, invstd, constant)
    for array, name, dtype in ((dx, "dx", x.dtype), (dgamma, "dgamma", FLOAT32), (dbeta, "dbeta", FLOAT32)):
        assert_close(array, expected[name][0], dtype, expected[name][1])
    if add:
        assert dadd.dtype == x.dtype
        np.testing.assert_array_equal(exact(dadd), gradient)
    else:
        assert dadd is None


def check_batch_norm(side, shape, dtype, attributes, with_add, by):
    """Forward and backward pass, with running statistics."""
    rng = np.random.default_rng(0)
    x, dy = arrays(rng, shape, dtype, 2.0, 1.0), arrays(rng, shape, dtype)
    add = arrays(rng, shape, dtype) if with_add else None
    gamma, beta = channel_parameters(rng, shape[-1])
    running = arrays(rng, shape[-1], np.float32), np.exp(arrays(rng, shape[-1], np.float32))
    moved = side.send(running)
    on_device = side.send((x, gamma, beta))
    with engine(by):
        y, saved = side.cuda.batch_norm(*on_device, moved, attributes, add=side.send(add))

    moments = batch_norm_moments(x, attributes.eps, merged=True)
    mean, invstd = side.receive((saved.mean, saved.invstd))
    assert_close(mean, moments.mean, FLOAT32, moments.mean_bound)
    assert_close(invstd, moments.invstd, FLOAT32, moments.invstd_bound)
    before, bound = batch_norm_output(x, gamma, beta, moments, add)
    assert_close(side.receive(y), np.maximum(before, 0) if attributes.relu else before, dtype, bound)
    unbiased = moments.count / max(moments.count - 1, 1)
    for found, old, value, value_bound in zip(
        side.receive(moved),
        running,
        (moments.mean, moments.variance * unbiased),
        (moments.mean_bound, moments.variance_bound * unbiased),
        strict=True,
    ):
        kept, new = attributes.decay * exact(old), (1 - attributes.decay) * value
        assert_close(found, kept + new, FLOAT32, value_bound + accumulated(3, np.abs(kept) + np.abs(new)))

    before, bound = batch_norm_output(x, gamma, beta, given_moments(mean, invstd), add)
    # cuDNN may round what it computes again to the storage dtype before it looks at the sign.
    dy = without_doubt(dy, before, bound + (by == "cudnn") * np.finfo(np.float16).tiny)
    with engine(by):
        found = side.cuda.batch_norm_backward(side.send(dy), *on_device, saved, attributes, add=with_add)
    check_gradients(side.receive(found), dy, before, x, gamma, mean, invstd, attributes, with_add)


kinds = pytest.mark.parametrize(
    ("relu", "add"), [(False, False), (True, False), (True, True), (False, True)], ids=["plain", "relu", "both", "add"]
)


@on_devices(BATCH_NORMS, LARGE_BATCH_NORMS)
@kinds
def test_batch_norm_of_float16(side, case, relu, add):
    side.need_cudnn()
    shape = {**BATCH_NORMS, **LARGE_BATCH_NORMS}[case]
    check_batch_norm(side, shape, FLOAT16, BatchNorm(relu=relu), add, "cudnn")


@both_sides
@kinds
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
def test_batch_norm_of_other_dtypes(side, dtype, relu, add):
    side.need_cudnn()
    check_batch_norm(side, (3, 5, 6, 16), dtype, BatchNorm(relu=relu, eps=1e-3, decay=0.5), add, "cudnn")


@on_devices(BATCH_NORMS)
@kinds
@dtypes
def test_batch_norm_by_own_kernels(side, case, dtype, relu, add):
    check_batch_norm(side, BATCH_NORMS[case], dtype, BatchNorm(relu=relu), add, "kernels")


@on_devices([], LARGE_BATCH_NORMS)
@kinds
@dtypes
def test_batch_norm_of_large_arrays_by_kernels(side, case, dtype, relu, add):
    check_batch_norm(side, LARGE_BATCH_NORMS[case], dtype, BatchNorm(relu=relu), add, "kernels")


@on_devices(BATCH_NORMS)
@pytest.mark.parametrize("add", [False, True])
@dtypes
def test_inference_and_statistics_of_a_convolution_by_own_kernels(side, case, dtype, add):
    rng = np.random.default_rng(0)
    shape, attributes = BATCH_NORMS[case], BatchNorm(relu=True)
    x, dy, other = arrays(rng, (3, *shape), dtype)
    other = other if add else None
    gamma, beta = channel_parameters(rng, shape[-1])
    mean, variance = arrays(rng, shape[-1], np.float32), np.exp(arrays(rng, shape[-1], np.float32))
    invstd = 1 / np.sqrt(exact(variance) + attributes.eps)
    before, bound = batch_norm_output(x, gamma, beta, given_moments(mean, invstd), other)
    parameters = side.send((gamma, beta, mean, variance))
    y = side.cuda.batch_norm_inference(side.send(x), *parameters, attributes, add=side.send(other))
    assert_close(side.receive(y), np.maximum(before, 0), dtype, bound)
    dy = without_doubt(dy, before, bound)
    dy[(before > 0) & (exact(side.receive(y)) == 0)] = 0  # open, but too small for y
    found = side.cuda.batch_norm_inference_backward(*side.send((dy, x)), *parameters, attributes, y=y if add else None)
    check_gradients(side.receive(found), dy, before, x, gamma, mean, invstd, attributes, add, constant=True)

    flat = exact(x).reshape(-1, shape[-1])
    sums = side.cuda._sums(side.send(x))
    for one, terms in zip(side.receive(sums), (flat, flat**2), strict=True):
        assert_close(one, terms.sum(0), FLOAT32, accumulated(len(flat) + 4, np.abs(terms).sum(0)))
    running = side.send(tuple(np.zeros((2, shape[-1]), np.float32)))
    y, saved = side.cuda.batch_norm(side.send(x), *parameters[:2], running, attributes, add=side.send(other), sums=sums)
    mean, invstd = side.receive((saved.mean, saved.invstd))
    moments = batch_norm_moments(x, attributes.eps)
    assert_close(mean, moments.mean, FLOAT32, 2 * moments.mean_bound)
    tolerance = 8 * EPS32 * (flat**2).mean(0).max() + 1e-7
    np.testing.assert_allclose(1 / exact(invstd) ** 2 - attributes.eps, moments.variance, atol=tolerance)
    before, bound = batch_norm_output(x, gamma, beta, given_moments(mean, invstd), other)
    assert_close(side.receive(y), np.maximum(before, 0), dtype, bound)


@both_sides
def test_running_statistics_from_what_is_saved_by_own_kernels(side):
    """As it would be if cuDNN's running variance were biased."""
    rng = np.random.default_rng(0)
    attributes, rows, channels = BatchNorm(eps=1e-3, decay=0.75), 6, 300
    mean, running_mean = arrays(rng, (2, channels), FLOAT32)
    variance, running_variance = np.exp(arrays(rng, (2, channels), FLOAT32))
    invstd = (1 / np.sqrt(exact(variance) + attributes.eps)).astype(np.float32)
    sent, running = side.send((mean, invstd)), side.send((running_mean, running_variance))
    addresses = [*map(side.cuda._address, sent), rows, channels, *map(side.cuda._address, running)]
    side.cuda._run_channels("batch_norm_move_running", addresses, attributes, channels)
    found = side.receive(running)
    np.testing.assert_allclose(found[0], 0.75 * exact(running_mean) + 0.25 * exact(mean), atol=1e-6)
    expected = 0.75 * exact(running_variance) + 0.25 * exact(variance) * rows / (rows - 1)
    np.testing.assert_allclose(found[1], expected, rtol=2e-6, atol=attributes.eps * 2**-20)


@on_devices(["small"], [list(RESNET50)[2]])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_convolution_and_batch_normalization(side, case, dtype):
    side.need_cudnn()
    case = (THREE, X, W) if case == "small" else CONVOLUTIONS[case]
    x, w, _ = drawn(case, dtype, 0)
    rng = np.random.default_rng(1)
    gamma, beta = channel_parameters(rng, len(w))
    running = side.send(tuple(np.zeros((2, len(w)), np.float32)))
    sent = *side.send((x, w)), case[0], *side.send((gamma, beta)), running, BatchNorm(relu=True)
    z, y, saved = convolved_and_normalized(side.cuda, *sent)
    z, y, mean, invstd = side.receive((z, y, saved.mean, saved.invstd))
    wide, magnitude = (PRIMITIVES.conv_fprop(f(exact(x)), f(exact(w)), case[0]) for f in (np.array, np.abs))
    assert_close(z, wide, dtype, accumulated(w[0].size, magnitude))
    before, bound = batch_norm_output(z, gamma, beta, given_moments(mean, invstd))
    assert_close(y, np.maximum(before, 0), dtype, bound)
    # Statistics may be those of what is not yet rounded.
    np.testing.assert_allclose(mean, exact(z).mean((0, 1, 2)), atol=2 * eps_of(dtype) * np.abs(wide).mean() + 1e-5)
    np.testing.assert_allclose(1 / exact(invstd) ** 2, exact(z).var((0, 1, 2)) + 2e-5, rtol=4 * eps_of(dtype) + 1e-4)


# --- extreme statistics


@both_sides
@pytest.mark.parametrize(("by", "channels"), [("cudnn", 8), ("kernels", 1), ("kernels", 8)])
def test_statistics_of_millions_of_elements(side, by, channels):
    """3.2 million numbers of float16 with mean 100 and standard deviation 1, within 1e-3 of FP64."""
    if by == "cudnn":
        side.need_cudnn()
    rng = np.random.default_rng(0)
    rows = 256 * 112 * 112 if side.is_gpu or channels == 1 else 20_000
    x = rng.standard_normal((rows, channels), np.float32)
    x += 100
    x = x.astype(np.float16)
    expected_mean, expected_variance = (statistic(exact(x), axis=0) for statistic in (np.mean, np.var))
    running = side.send(tuple(np.zeros((2, channels), np.float32)))
    parameters = side.send((np.ones(channels, np.float32), np.zeros(channels, np.float32)))
    with engine(by):
        y, saved = side.cuda.batch_norm(side.send(x), *parameters, running, BatchNorm(eps=1e-12, decay=0.0))
    np.testing.assert_allclose(side.receive(saved.mean), expected_mean, rtol=0, atol=1e-3)
    np.testing.assert_allclose(1 / exact(side.receive(saved.invstd)) ** 2, expected_variance, rtol=1e-3)
    np.testing.assert_allclose(side.receive(running[1]), expected_variance, rtol=1e-3)
    normalized = (exact(x[:5000]) - expected_mean) / np.sqrt(expected_variance)
    assert_close(side.receive(y)[:5000], normalized, FLOAT16, 1e-3 * (1 + np.abs(normalized)))


@both_sides
@dtypes
@pytest.mark.parametrize("by", ENGINES)
@pytest.mark.parametrize("value", [0.0, 100.0, 65504.0])
@pytest.mark.parametrize("rows", [1, 2, 3000])
def test_a_channel_of_constants_by_own_kernels_and_others(side, value, rows, dtype, by):
    """It has a variance of 0, and its output is beta, as far as float32 knows ``gamma * mean / sqrt(eps)``."""
    if by == "cudnn":
        side.need_cudnn()
    x = np.full((rows, 8), value, dtype)
    gamma, beta = np.array([1, -1] * 4, np.float32), np.array([0.5, 0.25] * 4, np.float32)
    running = side.send((np.zeros(8, np.float32), np.ones(8, np.float32)))
    sent = side.send((x, gamma, beta))
    with engine(by):
        y, saved = side.cuda.batch_norm(*sent, running, BatchNorm(relu=True))
        found = side.cuda.batch_norm_backward(side.send(np.ones_like(x)), *sent, saved, BatchNorm(relu=True))
    assert all(np.isfinite(exact(array)).all() for array in side.receive((y, *saved[:2], *running, *found[:3])))
    # 3000 numbers of 65504 in float32 have a sum that is rounded; own kernels and NumPy take sums of differences.
    slack = (0 if by == "kernels" else rows * EPS32) * np.abs(exact(x[0]))
    np.testing.assert_array_less(np.abs(side.receive(saved.mean) - exact(x[0])), slack + 1e-30)
    largest = slack.max() ** 2
    invstd = exact(side.receive(saved.invstd))
    assert (invstd <= (1 + 1e-5) / np.sqrt(2e-5)).all()
    assert (invstd >= (1 - 1e-5) / np.sqrt(2e-5 + 4 * largest)).all()
    bound = (4 * EPS32 * np.abs(exact(x)) + 2 * slack) / np.sqrt(2e-5)
    assert_close(side.receive(y), np.broadcast_to(beta, x.shape), dtype, bound)


@both_sides
@pytest.mark.parametrize("by", ENGINES)
def test_the_largest_numbers_of_float16_by_own_kernels_and_others(side, by):
    if by == "cudnn":
        side.need_cudnn()
    x = np.where(np.random.default_rng(0).random((2000, 8)) < 0.5, 65504, -65504).astype(np.float16)
    sent = side.send((x, np.ones(8, np.float32), np.zeros(8, np.float32)))
    with engine(by):
        y, saved = side.cuda.batch_norm(*sent, None, BatchNorm())
        dx, dgamma, _, _ = side.cuda.batch_norm_backward(y, *sent, saved, BatchNorm())
    np.testing.assert_allclose(exact(side.receive(y)), np.sign(exact(x)), atol=0.1)
    assert np.isfinite(exact(side.receive(dx))).all()
    np.testing.assert_allclose(side.receive(dgamma), 2000, rtol=0.01)


@both_sides
@dtypes
def test_what_is_not_finite_stays_in_its_channel_by_own_kernels(side, dtype):
    x = np.ones((300, 9), dtype)
    x[17, 1] = np.nan
    parameters = side.send(tuple(np.ones((2, 9), np.float32)))
    others = np.arange(9) != 1
    for add in (None, np.zeros_like(x)):
        with engine("kernels"):
            y, saved = side.cuda.batch_norm(side.send(x), *parameters, None, BatchNorm(relu=True), add=side.send(add))
            dx, *_ = side.cuda.batch_norm_backward(
                *side.send((np.ones_like(x), x)), *parameters, saved, BatchNorm(relu=True), add=add is not None
            )
        assert (side.receive(y)[:, others] == 1).all()
        assert np.isnan(exact(side.receive(y))[:, 1]).all()
        assert np.isfinite(exact(side.receive(dx))[:, others]).all()


# --- pooling


POOLINGS = {
    "ResNet": (Pooling((3, 3), (2, 2), (1, 1)), (2, 9, 8, 16)),
    "all covered": (Pooling((3, 2), (2, 2), (1, 0), cover_all=True), (3, 8, 7, 5)),
    "stride 1": (Pooling((2, 3), (1, 1), (1, 1)), (1, 5, 6, 24)),
    "255 elements": (Pooling((15, 17), (15, 17)), (1, 30, 34, 3)),
    "one pixel": (Pooling((1, 1), (1, 1)), (4, 1, 1, 8)),
    "many channels": (Pooling((7, 7), (1, 1)), (2, 7, 7, 264)),
}
LARGE_POOLINGS = {"ResNet-50": (Pooling((3, 3), (2, 2), (1, 1)), (4, 112, 112, 64))}


def check_max_pool(side, pooling, shape, dtype, misaligned=False):
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, shape).astype(dtype)  # with ties
    x.flat[:: shape[3] + 1] = np.nan
    y, where = side.cuda.max_pool(side.send(x, misaligned), pooling)
    expected, places = PRIMITIVES.max_pool(x, pooling)
    same(side.receive(y), expected)
    same(side.receive(where), places)
    dy = arrays(rng, expected.shape, dtype)
    dx = side.receive(side.cuda.max_pool_backward(side.send(dy, misaligned), where, pooling, shape))
    same(dx, PRIMITIVES.max_pool_backward(dy, places, pooling, shape))


def check_means(side, pooling, shape, dtype, misaligned=False):
    rng = np.random.default_rng(0)
    x = arrays(rng, shape, dtype)
    count = math.prod(pooling.window)
    if not pooling.cover_all:
        y = side.receive(side.cuda.average_pool(side.send(x, misaligned), pooling))
        expected, terms = (PRIMITIVES.average_pool(array, pooling) for array in (exact(x), np.abs(exact(x))))
        assert_close(y, expected, dtype, accumulated(count + 1, terms))
        dy = arrays(rng, y.shape, dtype)
        dx = side.receive(side.cuda.average_pool_backward(side.send(dy, misaligned), pooling, shape))
        expected, terms = (
            PRIMITIVES.average_pool_backward(array, pooling, shape) for array in (exact(dy), np.abs(exact(dy)))
        )
        assert_close(dx, expected, dtype, accumulated(count + 1, terms))
    y = side.receive(side.cuda.global_average_pool(side.send(x, misaligned)))
    terms = np.abs(exact(x)).mean((1, 2))
    assert_close(y, exact(x).mean((1, 2)), dtype, accumulated(shape[1] * shape[2] + 1, terms))
    dx = side.receive(side.cuda.global_average_pool_backward(side.send(y, misaligned), shape))
    same(dx, PRIMITIVES.global_average_pool_backward(y, shape))


@on_devices(POOLINGS)
@dtypes
@pytest.mark.parametrize("misaligned", [False, True])
def test_pooling_by_own_kernels(side, case, dtype, misaligned):
    check_max_pool(side, *POOLINGS[case], dtype, misaligned)
    check_means(side, *POOLINGS[case], dtype, misaligned)


@on_devices([], LARGE_POOLINGS)
@dtypes
def test_pooling_of_large_images(side, case, dtype):
    check_max_pool(side, *LARGE_POOLINGS[case], dtype)
    check_means(side, *LARGE_POOLINGS[case], dtype)


# --- what else is done by kernels

LOCAL_RESPONSE_NORMS = {
    "images": (LocalResponseNorm(), (2, 5, 3, 64)),
    "another power": (LocalResponseNorm(alpha=0.5, beta=0.4), (2, 5, 3, 64)),
    "channels no multiple of 8": (LocalResponseNorm(alpha=0.5), (3, 7, 5, 13)),
    "a window of three groups": (LocalResponseNorm(n=30, alpha=0.5), (3, 7, 48)),
    "one channel": (LocalResponseNorm(alpha=0.5), (300, 1)),
    "rows of many blocks": (LocalResponseNorm(n=40, alpha=0.5), (2, 4104)),
}
LARGE_LOCAL_RESPONSE_NORMS = {
    "GoogLeNet": (LocalResponseNorm(), (8, 56, 56, 192)),
    "AlexNet": (LocalResponseNorm(), (8, 55, 55, 96)),
}


@on_devices(LOCAL_RESPONSE_NORMS, LARGE_LOCAL_RESPONSE_NORMS)
@dtypes
@pytest.mark.parametrize("misaligned", [False, True])
def test_local_response_norm_by_own_kernels(side, case, dtype, misaligned):
    attributes, shape = {**LOCAL_RESPONSE_NORMS, **LARGE_LOCAL_RESPONSE_NORMS}[case]
    x, dy = arrays(np.random.default_rng(0), (2, *shape), dtype, 3)
    sent_x, sent_dy = side.send(x, misaligned), side.send(dy, misaligned)
    y = side.receive(side.cuda.local_response_norm(sent_x, attributes))
    dx = side.receive(side.cuda.local_response_norm_backward(sent_dy, sent_x, attributes))
    for found, (expected, bound) in zip((y, dx), local_response_norm(x, dy, attributes), strict=True):
        assert_close(found, expected, dtype, bound)


@on_devices([(1, 1), (17, 10), (256, 1000)])
@dtypes
@pytest.mark.parametrize("top", [None, 5])
def test_accuracy_by_own_kernels(side, case, dtype, top):
    rng = np.random.default_rng(0)
    x, t = rng.integers(-3, 4, case).astype(dtype), labels(rng, *case, -1)
    found = side.receive(side.cuda.accuracy(*side.send((x, t)), top=top, ignore_label=-1))
    same(found, PRIMITIVES.accuracy(x, t, top=top, ignore_label=-1))


@both_sides
@dtypes
@pytest.mark.parametrize("shape", [(33, 10), (3, 5, 7, 24), (2, 40, 50, 40), (256, 1000), (1, 1)], ids=str)
@pytest.mark.parametrize("misaligned", [False, True])
def test_biases_by_own_kernels(side, shape, dtype, misaligned):
    rng = np.random.default_rng(0)
    x, axes = arrays(rng, shape, dtype, mean=1), tuple(range(len(shape) - 1))
    for of_bias in {dtype, FLOAT32}:
        b = arrays(rng, shape[-1:], of_bias)
        y = side.receive(side.cuda.add_bias(side.send(x, misaligned), side.send(b)))
        same(y, PRIMITIVES.add_bias(x, b))
        found = side.receive(side.cuda.bias_grad(side.send(x, misaligned), of_bias))
        terms = np.abs(exact(x)).sum(axes)
        assert_close(found, exact(x).sum(axes), of_bias, accumulated(math.prod(shape[:-1]), terms))


@on_devices([(1, 1), (5, 3), (17, 10), (9, 100), (4, 136), (3, 1000)])
@dtypes
@pytest.mark.parametrize("spread", [1.0, 1000.0])
@pytest.mark.parametrize("options", [{}, {"weighted": True, "smoothing": 0.1, "mixed": True}], ids=["plain", "all"])
def test_softmax_cross_entropy_by_own_kernels(side, case, dtype, spread, options):
    """``expf`` and ``logf`` of CUDA are right to 2 ulp, which is what the bounds have for each term."""
    count, number = case
    rng = np.random.default_rng(0)
    x, t = arrays(rng, case, dtype, spread), labels(rng, count, number, -1)
    weight = rng.uniform(0.5, 2, number).astype(np.float32) if options.get("weighted") else None
    smoothing = options.get("smoothing", 0.0)
    sent = side.send((x, t))
    mixed = mixed_labels(rng, t, count, number, "rows" if options.get("mixed") else "none")
    given = {"class_weight": side.send(weight), "smoothing": smoothing, "mixed": side.send(mixed)}
    losses, log_z = side.cuda.softmax_cross_entropy(*sent, **given)
    expected, expected_log_z, gradient = softmax_cross_entropy(x, t, weight, smoothing, -1, mixed)
    loss_bound, log_z_bound, gradient_bound = softmax_cross_entropy_bounds(x, weight, expected_log_z)
    assert_close(side.receive(losses), expected, FLOAT32, loss_bound)
    assert_close(side.receive(log_z), expected_log_z, FLOAT32, log_z_bound)
    for factors in (np.array(128, np.float32), arrays(rng, count, np.float32)):
        dx = side.receive(side.cuda.softmax_cross_entropy_backward(side.send(factors), *sent, log_z, **given))
        by_row = np.broadcast_to(exact(factors), count)[:, None]
        assert_close(dx, gradient * by_row, dtype, gradient_bound * np.abs(by_row))
    mean, factor = side.receive(side.cuda.mean_of_counted(losses, sent[1]))
    divisor = max((t != -1).sum(), 1)
    assert_close(factor, np.float64(1 / divisor), FLOAT32)
    total = exact(side.receive(losses)).sum() / divisor
    assert_close(mean, total, FLOAT32, accumulated(2, abs(total)))


@on_devices([(1, 1), (5, 3), (17, 10), (4, 136), (3, 1000)])
@dtypes
@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1, "threshold": 0.2, "kind": "rows"}], ids=["plain", "all"])
def test_binary_cross_entropy_by_own_kernels(side, case, dtype, options):
    count, number = case
    rng = np.random.default_rng(0)
    x, t = arrays(rng, case, dtype, 5.0), labels(rng, count, number, -1)
    mixed = mixed_labels(rng, t, count, number, options.get("kind", "none"))
    smoothing, threshold = options.get("smoothing", 0.0), options.get("threshold")
    sent, given = side.send((x, t)), {"smoothing": smoothing, "threshold": threshold, "mixed": side.send(mixed)}
    expected, gradient = binary_cross_entropy(x, t, smoothing, threshold, -1, mixed)
    loss_bound, gradient_bound = binary_cross_entropy_bounds(x)
    assert_close(side.receive(side.cuda.binary_cross_entropy(*sent, **given)), expected, FLOAT32, loss_bound)
    dx = side.receive(side.cuda.binary_cross_entropy_backward(side.send(np.array(128, np.float32)), *sent, **given))
    assert_close(dx, gradient * 128, dtype, gradient_bound * 128)


@on_devices([(1, 1, 1, 1), (4, 9, 8, 3), (5, 32, 32, 4)])
@dtypes
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_mixed_images_by_own_kernels(side, case, dtype, share):
    x, box = arrays(np.random.default_rng(0), case, dtype), (0, 0, case[1] // 2, case[2] // 3)
    found = side.receive(side.cuda.mix_images(side.send(x), share, box))
    of_both = np.abs(exact(x)) + np.abs(exact(x)[::-1])
    assert_close(found, exact(PRIMITIVES.mix_images(x, share, box)), dtype, 4 * np.finfo(np.float32).eps * of_both)


@both_sides
@dtypes
@pytest.mark.parametrize("size", [1, 5, 4096, 100_003])
@pytest.mark.parametrize("misaligned", [False, True])
def test_dropout_by_own_kernels(side, size, dtype, misaligned):
    """The same elements as on NumPy."""
    x = arrays(np.random.default_rng(0), size, dtype)
    state, expected_state = side.cuda.new_random_state(2**40 + 3), PRIMITIVES.new_random_state(2**40 + 3)
    for ratio in (0.0, 0.3, 0.5):
        y = side.cuda.dropout(side.send(x, misaligned), ratio, side.cuda.dropout_key(state))
        expected = PRIMITIVES.dropout(x, ratio, PRIMITIVES.dropout_key(expected_state))
        same(side.receive(y), expected)
    same(side.receive(state), expected_state)


@both_sides
@dtypes
def test_rows_times_factors_by_own_kernels(side, dtype):
    """The same rows as on NumPy, with all bits."""
    x, key = arrays(np.random.default_rng(0), (37, 5, 3, 8), dtype), np.array([5, 6], np.uint64)
    factors = side.cuda.row_factors(37, 0.3, side.send(key))
    expected = PRIMITIVES.row_factors(37, 0.3, key)
    same(side.receive(factors), expected)
    same(side.receive(side.cuda.scale_rows(side.send(x), factors)), PRIMITIVES.scale_rows(x, expected))


@both_sides
@dtypes
@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_with_factors_of_images(side, dtype, relu):
    for with_plus in (False, True):
        batches_with_factors.check(side.cuda, side.send, side.receive, (6, 9, 8, 40), dtype, relu, with_plus, 0)


@both_sides
@pytest.mark.parametrize("target", STORAGE, ids=str)
@pytest.mark.parametrize("source", STORAGE, ids=str)
@pytest.mark.parametrize("misaligned", [False, True])
def test_casts_and_layouts_by_own_kernels(side, source, target, misaligned):
    rng = np.random.default_rng(0)
    values = arrays(rng, 10_007, np.float32, 1e-3)
    values[:4] = np.inf, np.nan, 3e38, 2.0**-130
    with np.errstate(over="ignore"):
        values = values.astype(source)
    found = side.receive(side.cuda.cast(side.send(values, misaligned), target))
    same(found, PRIMITIVES.cast(values, target))
    for shape, channels in [
        ((2, 3, 9, 7), None),
        ((2, 3, 9, 7), 4),
        ((2, 3, 9, 7), 8),
        ((1, 17, 5, 3), None),
        ((3, 72, 11, 6), 80),
    ]:
        x = arrays(rng, shape, source)
        y = side.receive(side.cuda.to_nhwc(side.send(x, misaligned), target, channels))
        same(y, PRIMITIVES.to_nhwc(x, target, channels))
        back = side.receive(side.cuda.to_nchw(side.send(y, misaligned), source, shape[1]))
        same(back, PRIMITIVES.to_nchw(y, source, shape[1]))


@both_sides
@dtypes
def test_channels_and_closed_relus_by_own_kernels(side, dtype):
    """What convolutions use that cuDNN does not have in the shapes that are asked for."""
    rng = np.random.default_rng(0)
    for shape, wanted in [((5, 3, 3, 3), (8, 3, 3, 8)), ((8, 1, 1, 24), (5, 1, 1, 17)), ((2, 5, 5, 7), (2, 5, 5, 8))]:
        x = arrays(rng, shape, dtype)
        expected = np.zeros(wanted, dtype)
        kept = tuple(slice(min(pair)) for pair in zip(shape, wanted, strict=True))
        expected[kept] = x[kept]
        same(side.receive(side.cuda._resized(side.send(x), wanted)), expected)
        gradient = arrays(rng, shape, dtype)
        found = side.receive(side.cuda.relu_backward(*side.send((gradient, x))))
        same(found, np.where(exact(x) > 0, gradient, dtype.type(0)))


# --- the same bits every time


def test_every_primitive_is_called():
    names = {name for name, _ in inspect.getmembers(Primitives, inspect.isfunction) if not name.startswith("_")}
    called = set()

    class Spy:
        def __getattr__(self, name):
            called.add(name)
            return getattr(PRIMITIVES, name)

    for name, call in every_primitive(Spy(), lambda value: value, FLOAT16, X, W[0]):
        assert all(isinstance(array, np.ndarray | np.generic) for array in call()), name
    assert called == names


@both_sides
@dtypes
@pytest.mark.parametrize("by", ENGINES)
def test_deterministic_primitives_repeat_their_bits(side, dtype, by):
    """Three times each, the calls of all others in between."""
    if by == "cudnn":
        side.need_cudnn()
    cudnn.configure(deterministic=True)
    first = {}
    for _ in range(3):
        for name, call in primitives_on(side, dtype):
            if by == "kernels" and name.startswith(("conv", "deconv", "linear")):
                continue
            with engine(by):
                found = side.receive(tuple(call()))
            same_bits(found, first.setdefault(name, found), name)


# --- choices and workspaces


@both_sides
def test_what_is_measured_is_right_and_kept(side, tmp_path, monkeypatch):
    """Another process would find the choices on disk, and measure nothing."""
    side.need_cudnn()
    monkeypatch.setattr(search, "_CANDIDATES", 4)  # each has to be built
    cudnn.configure(autotune="measure", cache=tmp_path, compile_seconds=1)
    check_measured(side, side.fresh())
    (file,) = tmp_path.glob("*.json")
    choices = json.loads(file.read_text())["choices"]
    assert {text.split("(")[0] for text in choices} >= {"conv_fprop", "conv_dgrad", "conv_wgrad", "batch_norm"}
    assert all(choice["milliseconds"] > 0 for choice in choices.values())
    with (
        mock.patch("mixprec.backends.cudnn.search.fastest", side_effect=AssertionError),
        mock.patch("mixprec.backends.cudnn.context.fastest", side_effect=AssertionError),
    ):
        second = side.fresh()
        check_measured(side, second)
    assert json.loads(file.read_text())["choices"] == choices


def check_measured(side, cuda):
    check_convolutions(side, cuda, (THREE, X, W), FLOAT16)
    check_convolutions(side, cuda, (THREE, X, W), FLOAT16)  # with what has been chosen
    with mock.patch.object(side, "cuda", cuda):
        check_batch_norm(side, X, FLOAT16, BatchNorm(relu=True), False, "cudnn")


@both_sides
@pytest.mark.parametrize("limit", [0, 1 << 12])
def test_a_limit_to_the_workspace_is_kept_or_said_to_be_too_low(side, limit, monkeypatch):
    """The stand-in's engines that need none are taken away."""
    side.need_cudnn()
    monkeypatch.setattr(fake_cudnn, "PLANS", fake_cudnn.PLANS[:2])
    cudnn.configure(workspace=limit)
    x, w, dy = side.send(tuple(drawn((THREE, X, W), FLOAT16, 0)))
    cuda = side.fresh()
    calls = {
        "conv_fprop": lambda: cuda.conv_fprop(x, w, THREE),
        "conv_dgrad": lambda: cuda.conv_dgrad(dy, w, THREE, X),
        "conv_wgrad": lambda: cuda.conv_wgrad(x, dy, THREE, W),
    }
    message = rf"need more workspace than the limit of {limit / 2**20:g} MiB; raise cudnn.workspace_mib to \d+ or more"
    for name, call in calls.items():
        workspaces = cuda.cudnn._executor._workspaces
        with mock.patch.object(workspaces, "address", wraps=workspaces.address) as address:
            try:
                call()
            except NoEngine as error:
                failure = error
            else:
                failure = None
        assert failure is None or re.search(message, str(failure)), name
        assert all(call.args[1] <= limit for call in address.call_args_list), name


# --- CUDA graphs


def small_step(p, x, w, head, parameters, running, t):
    """Forward and backward pass of a convolution, batch normalization, ReLU, pooling, a linear layer and the loss."""
    relu, pooling = BatchNorm(relu=True), Pooling((3, 3), (2, 2), (1, 1))
    z, y, saved = convolved_and_normalized(p, x, w, THREE, *parameters, running, relu)
    pooled, where = p.max_pool(y, pooling)
    features = p.global_average_pool(pooled)
    logits = p.linear(features, head)
    losses, log_z = p.softmax_cross_entropy(logits, t)
    loss, factor = p.mean_of_counted(losses, t)
    dlogits = p.softmax_cross_entropy_backward(factor, logits, t, log_z)
    dhead = p.linear_wgrad(features, dlogits)
    dpooled = p.global_average_pool_backward(p.linear_dgrad(dlogits, head), pooled.shape)
    dy = p.max_pool_backward(dpooled, where, pooling, y.shape)
    dz, dgamma, dbeta, _ = p.batch_norm_backward(dy, z, *parameters, saved, relu)
    return loss, p.conv_dgrad(dz, w, THREE, x.shape), p.conv_wgrad(x, dz, THREE, w.shape), dhead, dgamma, dbeta


@both_sides
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_a_graph_of_a_step_repeats_its_bits(side, dtype):
    """Also with another input in the same place, and whatever is in its outputs before."""
    side.need_cudnn()
    cudnn.configure(deterministic=True)
    rng = np.random.default_rng(0)
    inputs = [arrays(rng, X, dtype) for _ in range(2)]
    w, head = arrays(rng, W, dtype, 0.1), arrays(rng, (10, W[0]), dtype)
    x, *weights = side.send((inputs[0], w, head))
    parameters, running = (side.send(tuple(np.ones((2, W[0]), np.float32))) for _ in range(2))
    t = side.send(np.array([3, 7], np.int32))
    cuda = side.fresh()

    def step():
        return small_step(cuda, x, *weights, parameters, running, t)

    def reset(value):
        side.write(x, value)
        for array in running:
            side.write(array, np.ones(W[0], np.float32))

    expected = []
    for value in inputs:
        reset(value)
        expected.append(side.receive((*step(), *running)))
    launch, outputs = side.graph_of(cuda, step)
    for value, wanted in zip((*inputs, inputs[0]), (*expected, expected[0]), strict=True):
        reset(value)
        for array in outputs:
            side.fill(cuda._address(array), 0xFF, array.nbytes)
        side.wait()
        launch()
        same_bits(side.receive((*outputs, *running)), wanted, "small_step")
    assert not np.array_equal(expected[0][1], expected[1][1])


@both_sides
def test_a_first_use_in_a_capture_is_an_error(side):
    side.need_cudnn()
    cudnn.configure(deterministic=True)
    x, w, _ = side.send(tuple(drawn((THREE, X, W), FLOAT16, 0)))
    cuda = side.fresh()
    with pytest.raises(CaptureError, match=r"while a CUDA graph captures.*run the step eagerly first"):
        side.graph_of(cuda, lambda: cuda.conv_fprop(x, w, THREE), warm=False)
    y = side.receive(cuda.conv_fprop(x, w, THREE))  # and nothing is broken
    np.testing.assert_array_equal(y, side.receive(side.cuda.conv_fprop(x, w, THREE)))
