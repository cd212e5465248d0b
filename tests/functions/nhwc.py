"""Helpers of the tests of mixprec.functions and mixprec.links: NHWC beside Chainer's NCHW in float64."""

import chainer
import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32))
EPS = {DTYPES[0]: 2.0**-11, BFLOAT16: 2.0**-8, DTYPES[2]: 2.0**-24}  # half a unit in the last place, relative
EPS32 = 2.0**-24
SMALLEST = {DTYPES[0]: 2.0**-25, BFLOAT16: 2.0**-133, DTYPES[2]: 2.0**-149}  # half of the smallest number


def normal(seed, *shape, dtype=np.float32):
    """Normally distributed numbers, rounded to ``dtype``."""
    return np.random.RandomState(seed).normal(size=shape).astype(np.float32).astype(dtype)


def wide(array):
    """As float64; a label stays one."""
    return array if array.dtype.kind == "i" else array.astype(np.float64)


def to_nchw(array):
    """(N, H, W, C) as (N, C, H, W), in memory, too; other arrays as they are."""
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if array.ndim == 4 else array


def channels_last(array):
    """Filters (K, C, R, S) that lie in memory as (K, R, S, C)."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def run(function, arrays, dy=None, seed=7):
    """Runs forward and backward.

    Args:
        function: of variables.
        arrays: inputs.
        dy: gradient of the result; ``None`` for one drawn from ``seed``.
        seed: see there.

    Returns:
        ``(y, [gradient of each input], dy)``
    """
    variables = [chainer.Variable(array) for array in arrays]
    y = function(*variables)
    dy = normal(seed, *y.shape, dtype=y.dtype) if dy is None else dy
    y.grad = dy
    y.backward()
    return y.array, [variable.grad for variable in variables], dy


def assert_rounded(found, exact, dtype, slack):
    """``found`` is in ``dtype`` and is ``exact`` rounded once, within ``slack`` of what float32 does before that."""
    assert found.dtype == dtype
    assert found.shape == exact.shape
    error = np.abs(found.astype(np.float64) - exact)
    bound = (np.abs(exact) + slack) * EPS[np.dtype(dtype)] + SMALLEST[np.dtype(dtype)] + slack
    worst = np.argmax(error - bound)
    assert (error <= bound).all(), (error.flat[worst], np.broadcast_to(bound, error.shape).flat[worst])
