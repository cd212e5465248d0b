"""Second moments and their inverses, by NumPy and by the native library, beside plain loops in FP64."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import convolution as host
from mixprec.backends.geometry import Convolution, Saved
from tests.backends.primitive_cases import FLOAT32, STORAGE, arrays, exact, seeds, storage_dtypes
from tests.cases import tries

TOLERANCE = 1e-5  # of a matrix, relative to its norm
limits = st.sampled_from([1, 1 << 12, host.LIMIT])  # single rows or images, a few of them, everything at once


def assert_near(found, expected, norm=None):
    """Asserts that a float32 array is near exact values, relative to a norm: that of these unless it is given."""
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    norm = np.linalg.norm(expected) if norm is None else norm
    assert np.linalg.norm(found - expected) <= TOLERANCE * norm


def patches(x, filter_size, convolution, channels, bias):
    """Returns what a filter sees at each position, by loops: (groups, N * OH * OW, R * S * C / groups) in FP64.

    Args:
        x: (N, H, W, C).
        channels: of them, those that the filter has.
        filter_size, convolution, bias: as of ``patch_moments``.
    """
    (r, s), (sh, sw), (ph, pw), (dh, dw) = filter_size, convolution.stride, convolution.pad, convolution.dilation
    images, height, width, _ = x.shape
    oh, ow = convolution.out_size((height, width), filter_size)
    own = channels // convolution.groups
    found = np.zeros((convolution.groups, images, oh, ow, r, s, own))
    for i, j, k, m in np.ndindex(oh, ow, r, s):
        row, column = i * sh + k * dh - ph, j * sw + m * dw - pw
        if 0 <= row < height and 0 <= column < width:
            for group in range(convolution.groups):
                found[group, :, i, j, k, m] = x[:, row, column, group * own : (group + 1) * own]
    found = found.reshape(convolution.groups, images * oh * ow, r * s * own)
    return np.concatenate([found, np.ones((*found.shape[:2], 1))], axis=2) if bias else found


@st.composite
def windows(draw):
    """A convolution, (N, H, W), filter size, channels of a group, and channels of zeros that follow."""
    filter_size = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pairs = [draw(st.tuples(values, values)) for values in (st.integers(1, 2), st.integers(0, 2), st.integers(1, 2))]
    convolution = Convolution(*pairs, draw(st.sampled_from([1, 1, 2, 3])))
    size = [
        draw(st.integers(max(1, (taps - 1) * dilation + 1 - 2 * pad), 7))
        for taps, pad, dilation in zip(filter_size, convolution.pad, convolution.dilation, strict=True)
    ]
    zeros = draw(st.integers(0, 3)) if convolution.groups == 1 else 0
    return convolution, (draw(st.integers(1, 3)), *size), filter_size, draw(st.integers(1, 3)), zeros


@settings(max_examples=tries(100))
@given(case=windows(), dtype=storage_dtypes, bias=st.booleans(), seed=seeds, limit=limits)
def test_patch_moments(anywhere, case, dtype, bias, seed, limit):
    convolution, shape, filter_size, own, zeros = case
    rng = np.random.default_rng(seed)
    channels = convolution.groups * own
    x = arrays(rng, (*shape, channels + zeros), dtype, mean=0.5)
    x[..., channels:] = 0
    rows = patches(exact(x), filter_size, convolution, channels, bias)
    expected = rows.transpose(0, 2, 1) @ rows
    before = arrays(rng, expected.shape, np.float32)  # which stays a part of the sum
    out = before.copy()
    with mock.patch.object(host, "LIMIT", limit):
        anywhere.patch_moments(x, convolution, filter_size, out, bias=bias)
    assert_near(np.tril(out), np.tril(expected + before))


@settings(max_examples=tries(50))
@given(
    rows=st.integers(1, 70),
    groups=st.integers(1, 3),
    size=st.integers(1, 20),
    dtype=storage_dtypes,
    seed=seeds,
    limit=limits,
)
def test_row_moments(anywhere, rows, groups, size, dtype, seed, limit):
    rng = np.random.default_rng(seed)
    shape = (rows, groups * size) if rows % 2 else (rows // 2, 2, 1, groups * size)
    dy = arrays(rng, shape, dtype)
    out = np.zeros((groups, size, size), np.float32)
    with mock.patch.object(host, "LIMIT", limit):
        anywhere.row_moments(dy, out)
    expected = np.zeros(out.shape)
    for row in exact(dy).reshape(-1, groups, size):
        for group, part in enumerate(row):
            expected[group] += np.outer(part, part)
    assert_near(np.tril(out), np.tril(expected))


@settings(max_examples=tries(50))
@given(
    shape=st.sampled_from([(5, 3), (1, 1), (4, 2, 3, 5), (3, 1, 1, 8), (2, 5, 5, 17)]),
    dtype=storage_dtypes,
    relu=st.booleans(),
    seed=seeds,
    limit=limits,
)
def test_scale_moments(anywhere, shape, dtype, relu, seed, limit):
    rng = np.random.default_rng(seed)
    x, dy = arrays(rng, shape, dtype, mean=1), arrays(rng, shape, dtype)
    gamma, beta, mean = arrays(rng, (3, shape[-1]), np.float32)
    saved = Saved(mean, np.abs(arrays(rng, shape[-1], np.float32)) + np.float32(0.5))
    out = np.zeros((3, shape[-1]), np.float32)
    with mock.patch.object(host, "LIMIT", limit):
        anywhere.scale_moments(dy, x, gamma, beta, saved, out, relu=relu)

    normalized = (exact(x) - exact(mean)) * exact(saved.invstd)
    opened = exact(gamma) * normalized + exact(beta)
    near = np.abs(opened) < 1e-4 * (1 + np.abs(opened))  # where a rounding decides whether the ReLU is open
    gradient = np.where(opened > 0, exact(dy), 0) if relu else exact(dy)
    expected = np.zeros(out.shape)
    for image in range(shape[0]):
        dgamma = (gradient * normalized)[image].reshape(-1, shape[-1]).sum(0)
        dbeta = gradient[image].reshape(-1, shape[-1]).sum(0)
        expected += [dgamma**2, dgamma * dbeta, dbeta**2]
    decided = ~near.reshape(-1, shape[-1]).any(0) | (not relu)
    assert_near(out[:, decided], expected[:, decided])


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_moments_that_do_not_fit_are_not_finite(primitives, dtype):
    """An activation of inf, or squares beyond float32, without a warning."""
    for number in (np.inf, np.nan, 1e30):
        with np.errstate(over="ignore"):
            x = np.full((1, 2, 2, 3), number).astype(dtype)
        out = np.zeros((1, 4, 4), np.float32)
        primitives.patch_moments(x, Convolution(), (1, 1), out, bias=True)
        assert not np.isfinite(out[0, 0, 0])
        assert out[0, 3, 3] == 4
        gradients = np.zeros((1, 3, 3), np.float32)
        primitives.row_moments(x, gradients)
        assert not np.isfinite(gradients[0, 0, 0])


# --- inverses


def symmetric(rng, groups, size, rank=None):
    """Returns second moments of random rows, float32."""
    rows = rng.standard_normal((groups, size if rank is None else rank, size))
    return (rows.transpose(0, 2, 1) @ rows).astype(np.float32)


@settings(max_examples=tries(40))
@given(groups=st.integers(1, 3), size=st.sampled_from([1, 2, 3, 7, 16, 33, 64]), full=st.booleans(), seed=seeds)
def test_inverses(primitives, groups, size, full, seed):
    rng = np.random.default_rng(seed)
    moments = symmetric(rng, groups, size, None if full else max(1, size // 3))
    shifts = np.array([0.5, 2.0, 0.1][:groups], np.float32)
    out, before = np.full_like(moments, np.nan), moments.copy()
    primitives.inverses(moments, shifts, out)
    np.testing.assert_array_equal(moments, before)
    lower = np.tril(exact(moments))
    matrices = lower + np.tril(lower, -1).transpose(0, 2, 1) + exact(shifts)[:, None, None] * np.eye(size)
    assert_near(out, np.linalg.inv(matrices))
    np.testing.assert_array_equal(out, out.transpose(0, 2, 1))


def test_inverses_read_the_lower_triangle_only(primitives):
    moments = symmetric(np.random.default_rng(0), 2, 9)
    shifts = np.ones(2, np.float32)
    results = []
    for garbage in (None, 1e6, np.nan, np.inf):
        matrices = moments.copy()
        if garbage is not None:
            rows, columns = np.triu_indices(9, 1)
            matrices[:, rows, columns] = garbage
        results.append(np.empty_like(moments))
        primitives.inverses(matrices, shifts, results[-1])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0], strict=True)


@pytest.mark.parametrize(("number", "place"), [(np.nan, (3, 1)), (np.inf, (0, 0)), (-np.inf, (3, 3)), (-5.0, (4, 4))])
def test_a_matrix_without_an_inverse_gives_nan(primitives, number, place):
    """The group beside it is as it would be alone."""
    moments = symmetric(np.random.default_rng(1), 2, 5)
    shifts, out, alone = np.full(2, 0.5, np.float32), np.zeros_like(moments), np.zeros_like(moments[1:])
    primitives.inverses(moments[1:], shifts[1:], alone)
    moments[0][place] = number if place[0] == place[1] or np.isnan(number) else number * 1e6
    primitives.inverses(moments, shifts, out)
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1:], alone)


def test_a_shift_that_is_not_finite_gives_nan(primitives):
    moments = symmetric(np.random.default_rng(1), 2, 5)
    out = np.zeros_like(moments)
    primitives.inverses(moments, np.array([np.nan, np.inf], np.float32), out)
    assert np.isnan(out).all()


@settings(max_examples=tries(20))
@given(groups=st.integers(1, 3), sizes=st.tuples(*[st.integers(1, 40)] * 3), seed=seeds)
def test_products(anywhere, groups, sizes, seed):
    rng = np.random.default_rng(seed)
    (m, d, n) = sizes
    a, b = arrays(rng, (groups, m, d), FLOAT32), arrays(rng, (groups, d, n), FLOAT32)
    expected = np.einsum("gmd,gdn->gmn", exact(a), exact(b))
    assert_near(anywhere.products(a, b), expected, np.linalg.norm(exact(a)) * np.linalg.norm(exact(b)))
