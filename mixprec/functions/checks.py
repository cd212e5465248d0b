"""Checks of arguments, in place of Chainer's, which refuse bfloat16 and say little.

Each raises TypeError or ValueError with one line: function, argument, what it should be, and what was found.
"""

import operator

import chainer
import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_STORAGE = {dtype.name: dtype for dtype in (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32))}
STORAGE_DTYPES = frozenset(_STORAGE.values())
_NAMES = "float16, bfloat16 or float32"


def storage_dtype(value):
    """Returns a storage dtype by its name, or itself.

    Raises:
        ValueError: it is not float16, bfloat16 or float32.
    """
    found = _STORAGE.get(value) if isinstance(value, str) else np.dtype(value)
    if found not in STORAGE_DTYPES:
        raise ValueError(f"dtype must be {_NAMES}; found {value}")
    return found


def whole(function, argument, value, least):
    """Returns an argument as an int, which must be a whole number and not too small."""
    try:
        found = operator.index(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise ValueError(f"{function}: {argument} must be a whole number, {least} or more; found {value!r}")
    return found


def pair(function, argument, value, least):
    """Returns ``(vertical, horizontal)`` of a pair, or of one number for both: whole numbers and not too small."""
    try:
        vertical, horizontal = map(operator.index, value if hasattr(value, "__len__") else (value, value))
    except (TypeError, ValueError):
        vertical = horizontal = least - 1
    if min(vertical, horizontal) < least:
        raise ValueError(
            f"{function}: {argument} must be a whole number, {least} or more, or a pair of them; found {value!r}"
        )
    return vertical, horizontal


def dtype(function, argument, array):
    """An array must be in a storage dtype."""
    if array.dtype not in STORAGE_DTYPES:
        raise TypeError(f"{function}: {argument} must be {_NAMES}; found {array.dtype}")


def same_dtype(function, argument, array, other_argument, other):
    """An array must have the dtype of another one."""
    if array.dtype != other.dtype:
        raise TypeError(
            f"{function}: {argument} must have the dtype of {other_argument}, {other.dtype}; found {array.dtype}: "
            f"use cast()"
        )


def like(function, argument, array, other_argument, other):
    """An array must have the shape and the dtype of another one."""
    same_dtype(function, argument, array, other_argument, other)
    if array.shape != other.shape:
        raise ValueError(
            f"{function}: {argument} must have the shape of {other_argument}, {other.shape}; found {array.shape}"
        )


def images(function, argument, x, channels=None, *, padded=False):
    """``x`` must be (N, H, W, C) in a storage dtype.

    Args:
        function: name for the message.
        argument: name for the message.
        x: array.
        channels: what C should be; ``None`` if anything will do.
        padded: whether there may be more channels, up to the next multiple of 8.
    """
    dtype(function, argument, x)
    expected = f"{function}: {argument} must be (N, H, W, {channels or 'C'}); found shape {x.shape}"
    if x.ndim != 4:
        raise ValueError(expected)
    found = x.shape[3]
    if channels is None or found == channels or (padded and channels < found <= -(-channels // 8) * 8):
        return
    if x.shape[1] == channels:
        raise ValueError(f"{expected}, which looks like (N, C, H, W): use to_nhwc()")
    raise ValueError(expected)


def bias(function, b, channels, x):
    """A bias must be (channels,) in the dtype of ``x`` or float32."""
    if b.dtype not in (x.dtype, np.float32):
        expected = "float32" if x.dtype == np.float32 else f"{x.dtype} or float32"
        raise TypeError(f"{function}: b must be {expected}; found {b.dtype}")
    if b.shape != (channels,):
        raise ValueError(f"{function}: b must have shape ({channels},); found {b.shape}")


def per_channel(function, argument, array, channels):
    """An array must be (channels,) float32."""
    if array.dtype != np.float32:
        raise TypeError(f"{function}: {argument} must be float32; found {array.dtype}")
    if array.shape != (channels,):
        raise ValueError(f"{function}: {argument} must have shape ({channels},); found {array.shape}")


def normalization(function, gamma, beta, statistics, channels):
    """Parameters and statistics, a pair or ``None``, of a batch normalization must be (channels,) float32."""
    per_channel(function, "gamma", gamma, channels)
    per_channel(function, "beta", beta, channels)
    for argument, array in zip(("mean", "variance"), statistics or (), strict=False):
        per_channel(function, argument, array, channels)


def running_statistics(function, mean, variance):
    """Returns ``None`` or a pair of arrays; they must be given together, and be contiguous."""
    if mean is None and variance is None:
        return None
    if mean is None or variance is None:
        raise ValueError(f"{function}: running_mean and running_var go together; found only one of them")
    running = chainer.as_array(mean), chainer.as_array(variance)
    for name, array in zip(("running_mean", "running_var"), running, strict=True):
        if not array.flags.c_contiguous:
            raise ValueError(
                f"{function}: {name} is moved in place and must be contiguous; found strides {array.strides}"
            )
    return running
