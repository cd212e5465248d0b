"""Batch normalization in Chainer's layout by own kernels, on the host and on a GPU, beside Chainer's in float64."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.nchw import planes
from mixprec.backends.nchw.batch_norm import PlaneBatchNorms
from tests.backends import primitive_cases as cases
from tests.cases import pairs, tries
from tests.stand_ins.cuda_sides import both_sides

dtypes = pytest.mark.parametrize("dtype", cases.STORAGE, ids=str)
# (N, C, *spatial), with planes of whole units of 16 bytes, of nearly whole ones, and shorter than one.
shapes = st.tuples(
    st.integers(1, 5),
    st.sampled_from([1, 2, 3, 5, 8, 16, 17, 40]),
    st.sampled_from([1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 49, 64, 99, 200]),
)
epsilons, decays = st.sampled_from([2e-5, 1e-3]), st.sampled_from([0.9, 0.5])
SHAPES = (
    {"whole units": (3, 8, 6, 8), "7x7": (5, 16, 7, 7), "odd planes, no whole array": (3, 5, 3, 7)}
    | {"planes as short as a unit": (4, 16, 3, 3), "single pixels": (40, 24, 1, 1), "no axes": (40, 24)}
    | {"three axes": (2, 3, 3, 4, 6), "one channel, many parts": (2, 1, 61, 96), "groups": (1, 12, 250, 1)}
    | {"many channels": (2, 1100, 3, 3), "one element": (1, 1, 1, 1)}
)


def norms_of(side):
    return PlaneBatchNorms(side.cuda.launcher, side.cuda.cudnn)


def channels_last(x):
    """As the bounds of :mod:`tests.backends.primitive_cases` want it."""
    return np.moveaxis(x, 1, -1)


def reduced_axes(x):
    return (0, *range(2, x.ndim))


def chainers(dy, x, gamma, beta, eps):
    """Returns y, dx, dgamma and dbeta of Chainer in float64."""
    variables = [chainer.Variable(cases.exact(array)) for array in (x, gamma, beta)]
    y = F.batch_normalization(*variables, eps=eps, axis=reduced_axes(x))
    y.grad = cases.exact(dy)
    y.backward()
    return y.array, *(variable.grad for variable in variables)


def check_output(y, expected, x, parameters, moments):
    """``expected``: (N, C, *spatial), or ``None`` if only the formula says it."""
    value, bound = cases.batch_norm_output(channels_last(x), *parameters, moments)
    value, bound = (np.moveaxis(array, -1, 1) for array in (value, bound))
    if expected is not None:
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9)
    cases.assert_close(y, value, x.dtype, bound)


def check_forward(side, x, gamma, beta, eps, decay, misaligned):
    """Returns mean and invstd, as they are on the device."""
    rng = np.random.default_rng(0)
    running = cases.arrays(rng, gamma.shape, cases.FLOAT32), np.exp(cases.arrays(rng, gamma.shape, cases.FLOAT32))
    moved = side.send(running)
    y, *saved = norms_of(side).batch_norm(side.send(x, misaligned), *side.send((gamma, beta)), moved, eps, decay)
    mean, invstd = side.receive(tuple(saved))
    moments = cases.batch_norm_moments(channels_last(x), eps, merged=True)
    cases.assert_close(mean, moments.mean, cases.FLOAT32, moments.mean_bound)
    cases.assert_close(invstd, moments.invstd, cases.FLOAT32, moments.invstd_bound)
    check_output(side.receive(y), chainers(x, x, gamma, beta, eps)[0], x, (gamma, beta), moments)
    unbiased = moments.count / max(moments.count - 1, 1)
    for found, old, value, bound in zip(
        side.receive(moved),
        running,
        (moments.mean, moments.variance * unbiased),
        (moments.mean_bound, moments.variance_bound * unbiased),
        strict=True,
    ):
        kept, added = decay * cases.exact(old), (1 - decay) * value
        cases.assert_close(
            found, kept + added, cases.FLOAT32, bound + cases.accumulated(3, np.abs(kept) + np.abs(added))
        )
    return saved


def check_backward(side, dy, x, gamma, saved, misaligned):
    sent = side.send((dy, x), misaligned)
    found = side.receive(norms_of(side).batch_norm_backward(*sent, side.send(gamma), *saved))
    mean, invstd = side.receive(tuple(saved))
    gradients = cases.batch_norm_gradients(*map(channels_last, (dy, x)), gamma, mean, invstd)
    (dx, dx_bound), *of_channels = gradients.values()
    cases.assert_close(found[0], np.moveaxis(dx, -1, 1), x.dtype, np.moveaxis(dx_bound, -1, 1))
    for array, (value, bound) in zip(found[1:], of_channels, strict=True):
        cases.assert_close(array, value, cases.FLOAT32, bound)


def check(side, shape, dtype, misaligned=False, eps=2e-5, decay=0.9, spread=2.0, mean=0.0, seed=0):
    rng = np.random.default_rng(seed)
    x, dy = cases.arrays(rng, shape, dtype, spread, mean), cases.arrays(rng, shape, dtype, mean=0.25)
    gamma, beta = cases.channel_parameters(rng, shape[1])
    saved = check_forward(side, x, gamma, beta, eps, decay, misaligned)
    check_backward(side, dy, x, gamma, saved, misaligned)


# --- training


@pytest.mark.filterwarnings("ignore:A batch with no more than one sample")
@settings(max_examples=tries(80))
@given(
    shape=shapes,
    dtype=cases.storage_dtypes,
    misaligned=st.booleans(),
    eps=epsilons,
    decay=decays,
    mean=st.sampled_from([0.0, 3.0]),
    seed=cases.seeds,
)
def test_forward_and_backward(host, shape, dtype, misaligned, eps, decay, mean, seed):
    check(host, shape, dtype, misaligned, eps, decay, mean=mean, seed=seed)


@pytest.mark.filterwarnings("ignore:A batch with no more than one sample")
@both_sides
@pytest.mark.parametrize(("case", "misaligned", "dtype"), pairs(list(SHAPES), (False, True), cases.STORAGE), ids=str)
def test_shapes_by_own_kernels(side, case, dtype, misaligned):
    check(side, SHAPES[case], dtype, misaligned, mean=1.0)


@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("shape", [(32, 64, 112, 112), (64, 2048, 7, 7), (2, 32, 149, 149), (1, 3, 511, 513)], ids=str)
def test_large_arrays(gpu, shape, dtype):
    check(gpu, shape, dtype, mean=1.0)


LARGE_MEANS = [
    (100, cases.FLOAT16, (60, 80)),
    (-1000, cases.FLOAT32, (59, 79)),
    (3e5, cases.FLOAT32, (60, 80)),
    (100, cases.BFLOAT16, (59, 79)),
]


@pytest.mark.parametrize(("mean", "dtype", "pixels"), LARGE_MEANS)
def test_large_means_beside_small_variances(host, mean, dtype, pixels):
    x = cases.arrays(np.random.default_rng(0), (3, 8, *pixels), dtype, 1, mean)
    x[:, :, ::7] = mean
    parameters = np.ones(8, np.float32), np.zeros(8, np.float32)
    running = host.send((np.zeros(8, np.float32), np.zeros(8, np.float32)))
    y, *saved = norms_of(host).batch_norm(host.send(x), *host.send(parameters), running, 0.0, 0.0)
    found_mean, invstd = host.receive(tuple(saved))
    axes = reduced_axes(x)
    np.testing.assert_allclose(found_mean, cases.exact(x).mean(axes), rtol=2**-23)
    np.testing.assert_allclose(invstd, 1 / cases.exact(x).std(axes), rtol=1e-5)
    np.testing.assert_allclose(host.receive(running[1]), cases.exact(x).var(axes, ddof=1), rtol=1e-5)
    # Of the difference no digit is lost but those that the mean lacks.
    mean, invstd = (cases.exact(array)[:, None, None] for array in (found_mean, invstd))
    expected = (cases.exact(x) - mean) * invstd
    cases.assert_close(host.receive(y), expected, dtype, 4 * 2.0**-24 * np.abs(expected))


# --- inference


@settings(max_examples=tries(60))
@given(shape=shapes, dtype=cases.storage_dtypes, misaligned=st.booleans(), eps=epsilons, seed=cases.seeds)
def test_inference(host, shape, dtype, misaligned, eps, seed):
    rng = np.random.default_rng(seed)
    x = cases.arrays(rng, shape, dtype)
    gamma, beta = cases.channel_parameters(rng, shape[1])
    mean, variance = cases.arrays(rng, shape[1], cases.FLOAT32), np.exp(cases.arrays(rng, shape[1], cases.FLOAT32))
    y = norms_of(host).batch_norm_inference(host.send(x, misaligned), *host.send((gamma, beta, mean, variance)), eps)
    parameters = map(cases.exact, (x, gamma, beta, mean, variance))
    expected = F.fixed_batch_normalization(*parameters, eps=eps, axis=reduced_axes(x)).array
    moments = cases.given_moments(mean, 1 / np.sqrt(cases.exact(variance) + eps))
    check_output(host.receive(y), expected, x, (gamma, beta), moments)


# --- what is extreme


@pytest.mark.parametrize(
    ("value", "pixels", "dtype"), pairs((0.0, 100.0, 65504.0, -65504.0), (1, 49, 64), cases.STORAGE)
)
def test_a_channel_of_constants(host, value, pixels, dtype):
    """It has a variance of 0, its output is beta, and its gradients are finite."""
    x = np.full((16, 8, pixels), value, dtype)
    gamma, beta = np.array([1, -1] * 4, np.float32), np.array([0.5, 0.25] * 4, np.float32)
    running = host.send((np.zeros(8, np.float32), np.ones(8, np.float32)))
    norms = norms_of(host)
    y, *saved = norms.batch_norm(*host.send((x, gamma, beta)), running, 2e-5, 0.9)
    mean, invstd = host.receive(tuple(saved))
    np.testing.assert_array_equal(mean, cases.exact(x)[0, :, 0])
    np.testing.assert_allclose(invstd, 1 / np.sqrt(2e-5), rtol=1e-6)
    np.testing.assert_allclose(host.receive(running[1]), 0.9, rtol=1e-6)
    np.testing.assert_array_equal(cases.exact(host.receive(y)), np.broadcast_to(beta[:, None], x.shape))
    dx, dgamma, dbeta = host.receive(norms.batch_norm_backward(*host.send((np.ones_like(x), x, gamma)), *saved))
    assert np.isfinite(cases.exact(dx)).all()
    np.testing.assert_array_equal(dgamma, 0)
    np.testing.assert_array_equal(dbeta, 16 * pixels)


NOT_FINITE = pairs((3, 9, 12, 49, 64), (0, -1, slice(None)), (np.inf, np.nan), cases.STORAGE)


@pytest.mark.parametrize(("pixels", "place", "value", "dtype"), NOT_FINITE)
def test_what_is_not_finite_stays_in_its_channel(host, value, pixels, place, dtype):
    """Also if it shares 16 bytes with the next channel."""
    x = np.ones((16, 9, pixels), dtype)
    x[:, 4, place] = value
    parameters = host.send(tuple(np.ones((2, 9), np.float32)))
    norms = norms_of(host)
    y, *saved = norms.batch_norm(host.send(x), *parameters, None, 2e-5, 0.9)
    found = host.receive(norms.batch_norm_backward(*host.send((np.ones_like(x), x)), parameters[0], *saved))
    others = np.arange(9) != 4
    y, invstd = host.receive((y, saved[1]))
    assert (cases.exact(y)[:, others] == 1).all()
    np.testing.assert_array_equal(np.isnan(invstd), ~others)
    assert np.isnan(cases.exact(y)[:, 4]).all()
    assert np.isfinite(cases.exact(found[0])[:, others]).all()
    for array in found[1:]:
        assert np.isfinite(array[others]).all()


def test_an_empty_batch_is_an_error_only_in_training(host):
    parameters = host.send(tuple(np.ones((2, 3), np.float32)))
    for shape in [(0, 3, 4, 4), (2, 3, 0, 4)]:
        x = host.send(np.zeros(shape, np.float16))
        with pytest.raises(ValueError, match=r"empty batch.*\(\d, 3, \d, 4\)") as caught:
            norms_of(host).batch_norm(x, *parameters, None, 2e-5, 0.9)
        assert "\n" not in str(caught.value)
        with host.cuda.counting() as found:
            y = norms_of(host).batch_norm_inference(x, *parameters, *parameters, 2e-5)
        assert (y.shape, y.dtype, found.kernels) == (x.shape, x.dtype, 0)


# --- launches, threads and bits


def test_there_are_three_launches_each_way(host):
    x = host.send(np.ones((2, 16, 3, 3), np.float16))
    parameters = host.send(tuple(np.ones((4, 16), np.float32)))
    norms = norms_of(host)
    for launches, call in [
        (3, lambda: norms.batch_norm(x, *parameters[:2], parameters[2:], 2e-5, 0.9)),
        (1, lambda: norms.batch_norm_inference(x, *parameters, 2e-5)),
        (3, lambda: norms.batch_norm_backward(x, x, *parameters[:3])),
    ]:
        with host.cuda.counting() as found:
            call()
        assert found.kernels == launches


@both_sides
@dtypes
@pytest.mark.parametrize("case", ["7x7", "one channel, many parts", "single pixels"])
def test_bits_repeat_by_own_kernels(side, case, dtype):
    x, dy = cases.arrays(np.random.default_rng(0), (2, *SHAPES[case]), dtype)
    parameters = np.ones((2, x.shape[1]), np.float32)
    first = None
    for _ in range(3):
        gamma, beta = side.send(tuple(parameters))
        norms = norms_of(side)
        y, *saved = norms.batch_norm(side.send(x), gamma, beta, None, 2e-5, 0.9)
        found = side.receive((y, *saved, *norms.batch_norm_backward(*side.send((dy, x)), gamma, *saved)))
        bits = [array.tobytes() for array in found]
        first = first or bits
        assert bits == first


@settings(max_examples=tries(300))
@given(
    images=st.integers(0, 2000),
    channels=st.integers(1, 5000),
    pixels=st.integers(0, 200_000),
    itemsize=st.sampled_from([2, 4]),
    writes=st.booleans(),
    wide=st.booleans(),
    threads=st.sampled_from([64, 256]),
)
def test_every_unit_is_in_one_part(images, channels, pixels, itemsize, writes, wide, threads):
    wanted = 16 // itemsize if wide and images * channels * pixels % (16 // itemsize) == 0 else 1
    tiling = planes._tiling_of(images, channels, pixels, itemsize, wanted, threads, writes)
    everything = images * tiling.units
    assert (tiling.parts - 1) * tiling.part_units < max(everything, 1) <= max(tiling.parts * tiling.part_units, 1)
    assert tiling.width == (wanted if pixels >= wanted else 1)
    assert tiling.width * tiling.units >= pixels
    tiles = -(-channels // tiling.block_channels)
    assert tiling.block_channels in (1, 2, 4, 8, 16, 32)
    assert tiling.blocks == tiles * tiling.parts
    assert tiling.blocks <= max(4096 if writes else 1024, tiles)
