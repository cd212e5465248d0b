"""The primitives on CUDA beside NumPy's: on a GPU by ``pytest -m gpu``, and the same tests on the host's stand-ins.

What is not known of cuDNN comes first: if one of those tests fails, it says what cuDNN does, and the rest may not mean
much until the backend knows. Tests of small arrays that need no cuDNN have ``own_kernels`` in their names:
``scripts/sanitize.py`` runs them. More about each primitive is tested on the host, in the other files of this folder.
"""

import contextlib
import json
import math
from unittest import mock

import numpy as np
import pytest

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cuda import batch_norm, operations
from mixprec.backends.cuda.candidates import WithoutCudnn
from mixprec.backends.cuda.stem import squares_of
from mixprec.backends.cudnn import search
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.geometry import BatchNorm, Convolution, Pooling
from mixprec.backends.primitives import NAMES
from tests.backends import batch_norm_checks
from tests.backends import primitive_cases as cases
from tests.backends.cpu.test_convolution import counts, drawn
from tests.backends.cuda import gpu_cases
from tests.cases import pairs
from tests.stand_ins.cuda_on_host import ENGINES, engine
from tests.stand_ins.cuda_sides import both_sides, on_devices
from tests.stand_ins.kernels_on_host import odd_values

THREE = Convolution((1, 1), (1, 1))
X, W = (2, 6, 5, 16), (24, 3, 3, 16)
dtypes = pytest.mark.parametrize("dtype", cases.STORAGE, ids=str)


def primitives_on(side, dtype):
    """Yields names and calls of all primitives; images are large enough on a GPU for engines that need a workspace."""
    return gpu_cases.every_primitive(
        side.cuda, side.send, dtype, *(((8, 28, 28, 64), 128) if side.is_gpu else (X, W[0]))
    )


def same_bits(found, expected, name):
    """Asserts that arrays of two tuples are equal bit for bit."""
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        first, second = (np.frombuffer(array.tobytes(), np.uint8) for array in (one, other))
        np.testing.assert_array_equal(first, second, err_msg=f"{name}, result {place}")


# --- what is not known of cuDNN


@both_sides
@pytest.mark.parametrize("shape", [(2, 3, 3, 16), (3, 5, 7, 8), (1, 2, 1, 8)])
@pytest.mark.parametrize("dtype", [cases.FLOAT16, cases.BFLOAT16], ids=str)
def test_a_mask_fits_where_it_is_put(side, shape, dtype):
    """CUDNN_MASK_DTYPE has a byte for each element."""
    side.need_cudnn()
    rng = np.random.default_rng(0)
    x, add = cases.arrays(rng, (2, *shape), dtype)
    operation = operations.batch_norm(shape, dtype, BatchNorm(relu=True), add=True)
    parameters = tuple(np.ones((4, shape[-1]), np.float32))
    found = []
    for filling in (0x00, 0xFF):
        inputs = side.send((x, *parameters, add))
        outputs = side.send((x, *parameters, np.full(8 * x.size + 4096, filling, np.uint8)))
        side.cuda.cudnn.plan(operation).run(*map(side.cuda._address, (*inputs, *outputs)))
        found.append(side.receive(outputs)[-1])
    written = found[0] == found[1]
    assert written.any(), "cuDNN writes no mask"
    size = written.nonzero()[0].max() + 1
    assert size <= x.size * batch_norm.CUDNN_MASK_DTYPE.itemsize, f"cuDNN writes {size} bytes for {x.size} elements"


@both_sides
@pytest.mark.parametrize("shape", [(2, 1, 1, 8), (2, 2, 3, 16)])
@pytest.mark.parametrize("dtype", [cases.FLOAT16, cases.FLOAT32], ids=str)
def test_the_running_variance_of_cudnn_is_unbiased(side, shape, dtype):
    side.need_cudnn()
    x = cases.arrays(np.random.default_rng(0), shape, dtype, 2.0)
    moments, count = cases.batch_norm_moments(x, 0.0), math.prod(shape[:-1])
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
    assert matching == [True], f"{moved_variance} of {moments.variance}"


@both_sides
@pytest.mark.parametrize("add", [False, True])
def test_running_statistics_move_once_where_they_lie(side, add):
    """Both are input and output of one graph, whose blocks run in any order; 50 times, where many share a channel.

    A plan tries that before it relies on it, and else has copies.
    """
    side.need_cudnn()
    shape = (256, 56, 56, 64) if side.is_gpu else (2, 3, 3, 16)
    rng = np.random.default_rng(0)
    x, other = side.send(tuple(cases.arrays(rng, (2, *shape), cases.FLOAT16)))
    ones, apart, running, saved = (tuple(np.full((2, shape[-1]), 12.0, np.float32)) for _ in range(4))
    ones, apart, running, saved = map(side.send, (ones, apart, running, saved))
    plan = side.fresh().cudnn.plan(operations.batch_norm(shape, cases.FLOAT16, BatchNorm(relu=add, decay=0.5), add=add))
    y, mask = side.send((np.zeros(shape, cases.FLOAT16), np.zeros(shape, np.bool_)))

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
@pytest.mark.parametrize("dtype", [cases.FLOAT16, cases.FLOAT32], ids=str)
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
        for first, second in zip(*(map(cases.exact, arrays_) for arrays_ in found), strict=True):
            tolerance = (1e-2 if dtype == cases.FLOAT16 else 1e-4) * np.abs(first).max()
            np.testing.assert_allclose(second, first, rtol=0, atol=tolerance, err_msg=name)
    assert used or (dtype == cases.FLOAT32 and not side.is_gpu), "no plan has a workspace: nothing was tested"


# --- convolutions and linear layers


def products(x, w, dy, convolution):
    """Returns (y, dx, dw) by NumPy, in float64."""
    x, w, dy = map(cases.exact, (x, w, dy))
    return (
        PRIMITIVES.conv_fprop(x, w, convolution),
        PRIMITIVES.conv_dgrad(dy, w, convolution, x.shape),
        PRIMITIVES.conv_wgrad(x, dy, convolution, w.shape),
    )


def product_bounds(x, w, dy, convolution):
    """Returns what accumulation in float32 may add to the errors of these."""
    sums = products(*(np.abs(cases.exact(array)) for array in (x, w, dy)), convolution)
    return [cases.accumulated(*pair) for pair in zip(counts(dy.shape, w.shape, convolution), sums, strict=True)]


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
        cases.assert_close(ours, theirs, dtype, bound)


@both_sides
@pytest.mark.parametrize("dtype", [cases.FLOAT16, cases.BFLOAT16], ids=str)
@pytest.mark.parametrize("channels", [3, 4])
def test_first_convolutions_on_folded_images(side, channels, dtype):
    side.need_cudnn()
    convolution, shape, w_shape = Convolution((2, 2), (3, 3)), (2, 20, 28, channels), (16, 7, 7, channels)
    x, w, dy = drawn((convolution, shape, w_shape), dtype, 0)
    images, filters, gradient = side.send((x, w, dy))
    form = squares_of(shape, w_shape, convolution)
    images = side.cuda.conv_images(images, form, dtype)
    dx = side.cuda.conv_dgrad(gradient, filters, form, images.shape)
    found = (
        side.cuda.conv_fprop(images, filters, form),
        side.cuda.conv_images_backward(dx, form, shape, dtype),
        side.cuda.conv_wgrad(images, gradient, form, w_shape),
    )
    expected, bounds = products(x, w, dy, convolution), product_bounds(x, w, dy, convolution)
    for ours, theirs, bound in zip(side.receive(found), expected, bounds, strict=True):
        cases.assert_close(ours, theirs, dtype, bound)


@on_devices(gpu_cases.SMALL, gpu_cases.RESNET50)
def test_convolutions_of_float16(side, case):
    side.need_cudnn()
    check_convolutions(side, side.cuda, gpu_cases.CONVOLUTIONS[case], cases.FLOAT16)


OTHER_DTYPES = {
    f"{case}, {dtype}": (case, dtype) for case in gpu_cases.REST for dtype in (cases.BFLOAT16, cases.FLOAT32)
}


@on_devices([], OTHER_DTYPES)
def test_convolutions_of_other_dtypes(side, case):
    side.need_cudnn()
    case, dtype = OTHER_DTYPES[case]
    check_convolutions(side, side.cuda, gpu_cases.CONVOLUTIONS[case], dtype)


# --- batch normalization

_KINDS = {
    "plain": (BatchNorm(), False),
    "relu": (BatchNorm(relu=True), False),
    "both": (BatchNorm(relu=True, eps=1e-3, decay=0.5), True),
    "add": (BatchNorm(), True),
}
_BY = {"cudnn": "cudnn", "own_kernels": "kernels"}


def _named(shapes):
    return {", ".join(map(str, row)): row for row in pairs(*map(list, (shapes, _KINDS, cases.STORAGE, _BY)))}


_SMALL_NORMS, _LARGE_NORMS = _named(gpu_cases.BATCH_NORMS), _named(gpu_cases.LARGE_BATCH_NORMS)


@on_devices(_SMALL_NORMS, _LARGE_NORMS)
def test_batch_norm(side, case):
    shape, kind, dtype, by = {**_SMALL_NORMS, **_LARGE_NORMS}[case]
    if by == "cudnn":
        side.need_cudnn()
    shape = {**gpu_cases.BATCH_NORMS, **gpu_cases.LARGE_BATCH_NORMS}[shape]
    with engine(_BY[by]):
        batch_norm_checks.check(side.cuda, side.send, side.receive, shape, dtype, *_KINDS[kind])


@both_sides
@pytest.mark.parametrize(
    ("dtype", "relu"), [(cases.FLOAT16, True), (cases.BFLOAT16, False), (cases.FLOAT32, True)], ids=str
)
def test_batch_norm_with_factors_of_images(side, dtype, relu):
    for with_plus in (False, True):
        options = {"with_factors": True, "with_plus": with_plus}
        given_ = side.cuda, side.send, side.receive, (6, 9, 8, 40), dtype, BatchNorm(relu=relu), True
        batch_norm_checks.check(*given_, **options)


# --- extreme statistics


@both_sides
@pytest.mark.parametrize(("by", "channels"), [("cudnn", 8), ("kernels", 1), ("kernels", 8)])
def test_statistics_of_millions_of_elements(side, by, channels):
    """3.2 million numbers of float16 with mean 100 and standard deviation 1, within 1e-3 of FP64."""
    if by == "cudnn":
        side.need_cudnn()
    rng = np.random.default_rng(0)
    rows = 256 * 112 * 112 if side.is_gpu else 20_000  # on the host more are tested in test_batch_norm.py
    x = rng.standard_normal((rows, channels), np.float32)
    x += 100
    x = x.astype(np.float16)
    expected_mean, expected_variance = (statistic(cases.exact(x), axis=0) for statistic in (np.mean, np.var))
    running = side.send(tuple(np.zeros((2, channels), np.float32)))
    parameters = side.send((np.ones(channels, np.float32), np.zeros(channels, np.float32)))
    with engine(by):
        y, saved = side.cuda.batch_norm(side.send(x), *parameters, running, BatchNorm(eps=1e-12, decay=0.0))
    np.testing.assert_allclose(side.receive(saved.mean), expected_mean, rtol=0, atol=1e-3)
    np.testing.assert_allclose(1 / cases.exact(side.receive(saved.invstd)) ** 2, expected_variance, rtol=1e-3)
    np.testing.assert_allclose(side.receive(running[1]), expected_variance, rtol=1e-3)
    normalized = (cases.exact(x[:5000]) - expected_mean) / np.sqrt(expected_variance)
    cases.assert_close(side.receive(y)[:5000], normalized, cases.FLOAT16, 1e-3 * (1 + np.abs(normalized)))


@both_sides
@pytest.mark.parametrize("by", ENGINES)
@pytest.mark.parametrize(
    ("value", "rows", "dtype"), [(0, 1, cases.FLOAT32), (60416, 2, cases.BFLOAT16), (100, 3000, cases.FLOAT16)]
)
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
    assert all(np.isfinite(cases.exact(array)).all() for array in side.receive((y, *saved[:2], *running, *found[:3])))
    # The sum of many numbers in float32 is rounded; own kernels and NumPy take sums of differences.
    slack = (0 if by == "kernels" else rows * cases.EPS32) * value
    np.testing.assert_allclose(side.receive(saved.mean), value, rtol=0, atol=slack)
    bound = (4 * cases.EPS32 * value + 2 * slack) / np.sqrt(2e-5)
    cases.assert_close(side.receive(y), np.broadcast_to(beta, x.shape), dtype, bound)


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
        assert np.isnan(cases.exact(side.receive(y))[:, 1]).all()
        assert np.isfinite(cases.exact(side.receive(dx))[:, others]).all()


# --- each primitive

# Size of images, number of filters, and whether arrays begin in the middle of 16 bytes.
_SIZES = {
    "16 channels": (X, W[0], False),
    "not aligned": (X, W[0], True),
    "12 channels": ((2, 7, 6, 12), 20, False),
    "5 channels": ((3, 5, 4, 5), 6, False),
}


# There sums may be those of what is rounded.
_OF_ROUNDED = ("conv_fprop, statistics", "convolution and batch_norm", "recurrent")


@on_devices(_SIZES)
@dtypes
def test_each_primitive_is_numpys_by_own_kernels(side, case, dtype):
    """Within a rounding of each element, and what sums in another order may differ by."""
    size, filters, misaligned = _SIZES[case]
    calls = gpu_cases.every_primitive(side.cuda, lambda value: side.send(value, misaligned), dtype, size, filters)
    expected_calls = gpu_cases.every_primitive(PRIMITIVES, lambda value: value, dtype, size, filters)
    for (name, call), (_, expected_call) in zip(calls, expected_calls, strict=True):
        if name.startswith(("conv", "deconv", "linear")) and isinstance(side.cuda.cudnn, WithoutCudnn):
            continue
        if name == "batch_norm_part":  # in a form of the backend's own
            continue
        with engine("kernels") if name.startswith("batch_norm") else contextlib.nullcontext():
            found = side.receive(tuple(call()))
        for place, (one, right) in enumerate(zip(found, expected_call(), strict=True)):
            assert (one.dtype, one.shape) == (right.dtype, right.shape), f"{name}, result {place}"
            rounding = 2 * cases.eps_of(right.dtype) if right.dtype in cases.STORAGE else 0
            slack = 8 * cases.eps_of(dtype) if name.startswith(_OF_ROUNDED) else 2e-5
            slack = slack * np.abs(cases.exact(right)).max(initial=0) + cases.tiny_of(cases.FLOAT16)
            np.testing.assert_allclose(
                cases.exact(one), cases.exact(right), rtol=rounding, atol=slack, err_msg=f"{name}, result {place}"
            )


@both_sides
@dtypes
def test_odd_values_by_own_kernels(side, dtype):
    """NaN, infinities, subnormal numbers and both zeros, in what only selects and rounds."""
    rng = np.random.default_rng(0)
    x, dy = odd_values(rng, (2, 4, 9, 7, 16), dtype)
    pooling = Pooling((3, 3), (2, 2), (1, 1))
    t = rng.integers(0, 16, 7).astype(np.int32)
    calls = [
        lambda p, put: (p.relu(put(x)), p.relu_backward(put(dy), put(x)), *p.max_pool(put(x), pooling)),
        lambda p, put: (p.accuracy(put(x[0, 0]), put(t), top=5),),
        lambda p, put: tuple(p.cast(put(x), other) for other in cases.STORAGE),
        lambda p, put: (p.to_nhwc(put(x), dtype, 8), p.to_nchw(put(x), cases.FLOAT32)),
    ]
    for call in calls:
        with np.errstate(all="ignore"):
            expected = call(PRIMITIVES, lambda value: value)
        for one, right in zip(side.receive(call(side.cuda, side.send)), expected, strict=True):
            assert (one.dtype, one.shape) == (right.dtype, right.shape)
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(cases.exact(one), cases.exact(right))


# --- the same bits every time


def test_every_primitive_is_called():
    called = set()

    class Spy:
        def __getattr__(self, name):
            called.add(name)
            return getattr(PRIMITIVES, name)

    for name, call in gpu_cases.every_primitive(Spy(), lambda value: value, cases.FLOAT16, X, W[0]):
        assert all(isinstance(array, np.ndarray | np.generic) for array in call()), name
    assert called == set(NAMES)


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
    check_convolutions(side, cuda, (THREE, X, W), cases.FLOAT16)
    check_convolutions(side, cuda, (THREE, X, W), cases.FLOAT16)  # with what has been chosen
    with engine("cudnn"):
        batch_norm_checks.check(cuda, side.send, side.receive, X, cases.FLOAT16, BatchNorm(relu=True), False)


# --- CUDA graphs


def small_step(p, x, w, head, parameters, running, t):
    """Forward and backward pass of a convolution, batch normalization, ReLU, pooling, a linear layer and the loss."""
    relu, pooling = BatchNorm(relu=True), Pooling((3, 3), (2, 2), (1, 1))
    z, y, saved = cases.convolved_and_normalized(p, x, w, THREE, *parameters, running, relu)
    pooled, where = p.max_pool(y, pooling)
    features = p.global_average_pool(pooled)
    logits = p.linear(features, head)
    _, log_z, (loss, factor, _) = p.softmax_cross_entropy(logits, t, divisor=0)
    dlogits = p.softmax_cross_entropy_backward(factor, logits, t, log_z)
    dhead = p.linear_wgrad(features, dlogits)
    dpooled = p.global_average_pool_backward(p.linear_dgrad(dlogits, head), pooled.shape)
    dy = p.max_pool_backward(dpooled, where, pooling, y.shape)
    dz, dgamma, dbeta, _ = p.batch_norm_backward(dy, z, *parameters, saved, relu)
    return loss, p.conv_dgrad(dz, w, THREE, x.shape), p.conv_wgrad(x, dz, THREE, w.shape), dhead, dgamma, dbeta


@both_sides
@pytest.mark.parametrize("dtype", [cases.FLOAT16, cases.FLOAT32], ids=str)
def test_a_graph_of_a_step_repeats_its_bits(side, dtype):
    """Also with another input in the same place, and whatever is in its outputs before."""
    side.need_cudnn()
    cudnn.configure(deterministic=True)
    rng = np.random.default_rng(0)
    inputs = [cases.arrays(rng, X, dtype) for _ in range(2)]
    w, head = cases.arrays(rng, W, dtype, 0.1), cases.arrays(rng, (10, W[0]), dtype)
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
    x, w, _ = side.send(tuple(drawn((THREE, X, W), cases.FLOAT16, 0)))
    cuda = side.fresh()
    with pytest.raises(CaptureError, match=r"while a CUDA graph captures.*run the step eagerly first"):
        side.graph_of(cuda, lambda: cuda.conv_fprop(x, w, THREE), warm=False)
    y = side.receive(cuda.conv_fprop(x, w, THREE))  # and nothing is broken
    np.testing.assert_array_equal(y, side.receive(side.cuda.conv_fprop(x, w, THREE)))
