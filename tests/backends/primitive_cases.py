"""What the tests of primitives share, on NumPy, on the host's stand-in for CUDA, on a GPU: shapes, data, error bounds.

The bound of a result is that of one rounding to its dtype, and of what happened before in float32:
``n * 2**-24 * sum of |products|`` for a sum of n products.
"""

import math
from types import SimpleNamespace

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from mixprec.backends.geometry import BatchNorm, Following, LocalResponseNorm, Pooling

FLOAT16, BFLOAT16, FLOAT32 = map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32))
STORAGE = (FLOAT16, BFLOAT16, FLOAT32)
EPS32 = 2.0**-24  # relative error of one rounding to float32

storage_dtypes = st.sampled_from(STORAGE)
seeds = st.integers(0, 2**32 - 1)
channel_counts = st.sampled_from([1, 2, 3, 5, 7, 8, 9, 12, 16, 17, 24, 33, 64])
# (N, H, W): batches of one, odd sizes, single pixels.
positions = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))


def eps_of(dtype):
    """Returns the largest relative error of one rounding."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def tiny_of(dtype):
    """Returns the largest error of one rounding near 0: half of the smallest subnormal number."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2


def arrays(rng, shape, dtype, scale=1.0, mean=0.0):
    """Returns normally distributed numbers."""
    return (rng.standard_normal(shape) * scale + mean).astype(dtype)


def exact(array):
    """Returns an array as float64, or ``None`` for ``None``."""
    with np.errstate(invalid="ignore"):  # of signalling NaN
        return None if array is None else np.asarray(array).astype(np.float64)


def accumulated(count, magnitude):
    """Returns the error bound of a sum of ``count`` terms in float32, given the sum of their absolute values."""
    return (count + 1) * EPS32 * np.asarray(magnitude, np.float64)


def assert_close(found, expected, dtype, accumulated=0.0):
    """Asserts that an array has shape and dtype, and is within the error bound of exact values.

    Args:
        found: array of NumPy.
        expected: float64, the exact values.
        dtype: which ``found`` has to have.
        accumulated: error bound of what was computed in float32 before the rounding.
    """
    expected = np.asarray(expected, np.float64)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    largest = float(ml_dtypes.finfo(dtype).max)
    accumulated = np.broadcast_to(np.asarray(accumulated, np.float64), expected.shape)
    bound = eps_of(dtype) * (np.abs(expected) + accumulated) + tiny_of(dtype) + accumulated
    found = found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        right = np.abs(found - expected) <= bound
    right |= found == expected  # inf
    right |= np.isnan(found) & np.isnan(expected)
    # Half a step above the largest number is the first that is rounded to inf.
    overflows = np.abs(expected) + accumulated >= largest * (1 - eps_of(dtype) / 2) / (1 - eps_of(dtype))
    right |= overflows & (found == np.copysign(np.inf, expected))
    if not right.all():
        place = tuple(map(int, np.argwhere(~right)[0]))
        raise AssertionError(
            f"{(~right).sum()} of {right.size} are wrong; at {place} {found[place]!r} is not {expected[place]!r} "
            f"+- {bound[place]:.3g}"
        )


# Batch normalization


@st.composite
def batch_norm_shapes(draw):
    """Shapes (N, H, W, C) or (N, C)."""
    shape = draw(positions)
    return (*shape[: draw(st.sampled_from([1, 3, 3]))], draw(channel_counts))


batch_norms = st.builds(
    BatchNorm, eps=st.sampled_from([2e-5, 1e-3]), decay=st.sampled_from([0.9, 0.5]), relu=st.booleans()
)


def channel_parameters(rng, channels):
    """Returns gamma, beta (C,) float32; one gamma is 0."""
    gamma, beta = arrays(rng, (2, channels), np.float32)
    gamma[rng.integers(channels)] = 0
    return gamma, beta


def batch_norm_moments(x, eps, merged=False):
    """Returns the exact statistics of a batch and their bounds: ``mean``, ``variance``, ``invstd``, ``*_bound``.

    Args:
        x: (..., C).
        eps: what is added to the variance.
        merged: whether the variance is that of parts put together, as kernels do. Its relative error grows with its
            condition number, sqrt(1 + mean^2 / variance); that of deviations from a known mean does not (Chan, Golub
            and LeVeque 1983, doi:10.1080/00031305.1983.10483115, table 1).
    """
    x = exact(x).reshape(-1, x.shape[-1])
    count = len(x)
    mean, variance = x.mean(0), x.var(0)
    mean_bound = accumulated(count, np.abs(x).mean(0))
    condition = np.hypot(mean, np.sqrt(variance)) if merged else np.sqrt(variance)  # times the standard deviation
    variance_bound = accumulated(count + 8, np.sqrt(variance) * condition) + mean_bound**2
    invstd = 1 / np.sqrt(variance + eps)
    invstd_bound = invstd * (0.5 * variance_bound / (variance + eps) + 4 * EPS32)
    return SimpleNamespace(
        count=count,
        mean=mean,
        mean_bound=mean_bound,
        variance=variance,
        variance_bound=variance_bound,
        invstd=invstd,
        invstd_bound=invstd_bound,
    )


def batch_norm_output(x, gamma, beta, moments, add=None):
    """Returns ``gamma * (x - mean) * invstd + beta + add`` before a ReLU, and its bound in float32.

    Args:
        x: in the storage dtype.
        gamma: (C,).
        beta: (C,).
        moments: ``mean``, ``invstd`` and their bounds, as of :func:`batch_norm_moments`.
        add: ``None`` or like ``x``.
    """
    x, gamma, beta, add = map(exact, (x, gamma, beta, 0 if add is None else add))
    scale = gamma * moments.invstd
    y = scale * (x - moments.mean) + beta + add
    terms = np.abs(scale * x) + np.abs(scale * moments.mean) + np.abs(beta) + np.abs(add)
    bound = (
        np.abs(gamma * (x - moments.mean)) * moments.invstd_bound
        + np.abs(scale) * moments.mean_bound
        + 4 * EPS32 * terms
    )
    return y, bound


def given_moments(mean, invstd):
    """Returns statistics that are known to float32, as inputs, for :func:`batch_norm_output`."""
    mean, invstd = map(exact, (mean, invstd))
    return SimpleNamespace(mean=mean, mean_bound=0.0, invstd=invstd, invstd_bound=4 * EPS32 * invstd)


def batch_norm_gradients(g, x, gamma, mean, invstd, constant=False):
    """Returns the exact gradients of a batch normalization, and their bounds.

    Args:
        g: gradient behind the ReLU.
        x: input.
        gamma: (C,).
        mean: (C,), as saved.
        invstd: (C,), as saved.
        constant: whether the statistics are constants, as in inference.

    Returns:
        ``{name: (exact, bound)}`` of dx, dgamma, dbeta.
    """
    g, x, gamma, mean, invstd = map(exact, (g, x, gamma, mean, invstd))
    axes = tuple(range(x.ndim - 1))
    count = math.prod(x.shape[:-1])
    normalized, scale = (x - mean) * invstd, gamma * invstd
    dbeta, dgamma = g.sum(axes), (g * normalized).sum(axes)
    dbeta_bound = accumulated(count, np.abs(g).sum(axes))
    dgamma_bound = accumulated(count + 4, np.abs(g * normalized).sum(axes))
    dx, dx_terms, dx_bound = g, np.abs(g), 0.0
    if not constant:
        dx = g - dbeta / count - normalized * dgamma / count
        dx_terms = np.abs(g) + np.abs(dbeta) / count + np.abs(normalized * dgamma) / count
        dx_bound = dbeta_bound / count + np.abs(normalized) * dgamma_bound / count
    dx_bound = np.abs(scale) * (dx_bound + 8 * EPS32 * dx_terms)
    return {"dx": (scale * dx, dx_bound), "dgamma": (dgamma, dgamma_bound), "dbeta": (dbeta, dbeta_bound)}


def convolved_and_normalized(primitives, x, w, convolution, gamma, beta, running, attributes, add=None):
    """Returns z of a convolution, and y and saved of the batch normalization after it, which may take its sums."""
    z, sums = primitives.conv_fprop(x, w, convolution, statistics=Following(attributes.relu, add is not None))
    return z, *primitives.batch_norm(z, gamma, beta, running, attributes, add=add, sums=sums)


# Pooling


@st.composite
def poolings(draw, average=False):
    """A :class:`Pooling` and a shape (N, H, W, C) from which it makes at least one output."""
    window = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    pooling = Pooling(
        window,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        tuple(draw(st.integers(0, size)) for size in window),
        cover_all=not average and draw(st.booleans()),
    )
    height, width = (
        draw(st.integers(max(size - 2 * pad, 1), 12)) for size, pad in zip(window, pooling.pad, strict=True)
    )
    return pooling, (draw(st.integers(1, 3)), height, width, draw(channel_counts))


# Local response normalization

local_response_norms = st.builds(
    LocalResponseNorm,
    n=st.integers(1, 9) | st.sampled_from([17, 64, 1000]),
    k=st.sampled_from([1.0, 2.0, 0.1]),
    alpha=st.sampled_from([1e-4, 0.02, 1.0]),
    beta=st.sampled_from([0.75, 0.75, 0.5, 1.0, 0.3, 0.0]),
)


def local_response_norm(x, dy, attributes):
    """Returns ``((y, bound), (dx, bound))`` in FP64, the bounds for float32, in which powers are right to 4 ulp."""
    x, dy = exact(x), exact(dy)
    channels = np.arange(x.shape[-1])
    around = (np.abs(channels[:, None] - channels) <= attributes.n // 2).astype(np.float64)
    count = min(attributes.n // 2 * 2 + 1, len(channels))
    base = attributes.k + attributes.alpha * (x**2 @ around)
    base_error = (count + 5) * EPS32
    factor = base**-attributes.beta
    factor_error = attributes.beta * (base_error + np.abs(np.log(base)) * EPS32) + 10 * EPS32
    y = x * factor

    direct, term, slope = dy * factor, dy * y / base, 2 * attributes.alpha * attributes.beta * x
    indirect, magnitude = slope * (term @ around), np.abs(slope) * (np.abs(term) @ around)
    error = np.abs(slope) * (np.abs(term) * (factor_error + base_error + 4 * EPS32) @ around)
    dx_bound = np.abs(direct) * (factor_error + 2 * EPS32) + error + accumulated(count + 4, magnitude)
    return (y, np.abs(y) * (factor_error + EPS32)), (direct - indirect, dx_bound)


# Loss


def labels(rng, count, number, ignore_label):
    """Returns (count,) int32 labels of ``number`` classes, some of which are to be ignored."""
    t = rng.integers(0, number, count).astype(np.int32)
    t[rng.random(count) < 0.2] = ignore_label
    return t


def mixed_labels(rng, t, count, number, kind):
    """Returns second labels and shares of mixed images; ``kind`` is none, one share for all rows, or one for each."""
    if kind == "none":
        return None
    shares = rng.uniform(0, 1, ()).astype(np.float32) if kind == "all" else rng.uniform(0, 1, count).astype(np.float32)
    return rng.integers(0, number, count).astype(np.int32), np.asarray(shares)


MIXED = ["none", "all", "rows"]


def targets(shape, t, smoothing, ignore_label, mixed=None):
    """Returns target distributions in FP64: of one label, or of two and the share of the first."""
    second, share = (t, np.ones(())) if mixed is None else (mixed[0], exact(mixed[1]))
    rows = np.arange(len(t))[t != ignore_label]
    share = np.broadcast_to(share, t.shape)[rows]
    target = np.full(shape, smoothing / shape[1])
    np.add.at(target, (rows, t[rows]), (1 - smoothing) * share)
    np.add.at(target, (rows, second[rows]), (1 - smoothing) * (1 - share))
    return target


def softmax_cross_entropy(x, t, class_weight, smoothing, ignore_label, mixed=None):
    """Returns ``(losses, log_z, gradients of each row's loss)`` in FP64."""
    x = exact(x)
    largest = x.max(1, keepdims=True)
    log_z = np.log(np.exp(x - largest).sum(1, keepdims=True)) + largest
    counted = t != ignore_label
    target = targets(x.shape, t, smoothing, ignore_label, mixed)
    target *= 1 if class_weight is None else exact(class_weight)
    losses = np.where(counted, (target * (log_z - x)).sum(1), 0)
    gradient = np.where(counted[:, None], np.exp(x - log_z) * target.sum(1, keepdims=True) - target, 0)
    return losses, log_z[:, 0], gradient


def binary_cross_entropy(x, t, smoothing, threshold, ignore_label, mixed=None):
    """Returns ``(losses, gradients of each row's loss)`` in FP64."""
    x, counted = exact(x), t != ignore_label
    target = targets(x.shape, t, smoothing, ignore_label, mixed)
    if threshold is not None:
        target = (target > threshold).astype(np.float64)
    losses = np.where(counted, (np.maximum(x, 0) - x * target + np.log1p(np.exp(-np.abs(x)))).mean(1), 0)
    # exp() of the positive half only: it does not overflow.
    sigmoid = np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))
    return losses, np.where(counted[:, None], (sigmoid - target) / x.shape[1], 0)


def binary_cross_entropy_bounds(x):
    """Returns error bounds of the losses of rows, and of the elements of the gradient."""
    count = x.shape[1]
    return accumulated(count + 8, 2 * np.abs(exact(x)).mean(1) + 1), accumulated(16, 1 / count)


def softmax_cross_entropy_bounds(x, class_weight, log_z):
    """Returns error bounds of the losses of rows, log_z, and the elements of the gradient."""
    weight = 1 if class_weight is None else exact(class_weight).max()
    count = x.shape[1]
    largest = np.abs(exact(x)).max(1) + np.abs(log_z)
    return (
        accumulated(count + 4, 2 * weight * largest + weight),
        accumulated(count + 4, 1 + largest),
        weight * accumulated(count + 8, 1 + largest)[:, None],
    )
