"""Checks of arguments, instead of Chainer's, which refuse bfloat16 and give little detail.

Each raises TypeError or ValueError with one line: function, argument, what it should be, and what was found.
"""

import math

import chainer
import numpy as np

from mixprec.base import arguments
from mixprec.base.dtypes import STORAGE_DTYPES

_NAMES = "float16, bfloat16 or float32"


def whole(function, argument, value, least=None):
    """Returns an argument as an int, which must be a whole number and not too small."""
    if type(value) is int and (least is None or value >= least):  # in most calls
        return value
    return arguments.whole(f"{function}: {argument}", value, least)


def pair(function, argument, value, least):
    """Returns ``(vertical, horizontal)`` of a pair, or of one number for both: whole numbers and not too small."""
    both = value if hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict)) else (value, value)
    try:
        vertical, horizontal = map(arguments.as_index, both)
    except (TypeError, ValueError):
        vertical = horizontal = None
    if vertical is None or horizontal is None or min(vertical, horizontal) < least:
        raise ValueError(
            f"{function}: {argument} must be a whole number, {least} or more, or a pair of them; "
            f"found {arguments.found(value)}"
        )
    return vertical, horizontal


def number(function, argument, value, least=-math.inf, below=math.inf):
    """Returns an argument as a float, which must be finite, ``least`` or more, and less than ``below``."""
    if type(value) is float and least <= value < below and value > -math.inf:  # in most calls
        return value
    return arguments.number(f"{function}: {argument}", value, least, below)


def flag(function, argument, value):
    """Returns an argument as a bool, which must be True or False."""
    return value if value is True or value is False else arguments.flag(f"{function}: {argument}", value)


def array(function, argument, value):
    """Returns the array of an argument, which must be an array or a variable.

    Raises:
        TypeError: it is neither.
    """
    found = value.array if isinstance(value, chainer.Variable) else value
    if not isinstance(found, chainer.get_array_types()):
        raise TypeError(f"{function}: {argument} must be an array or a variable; found {arguments.found(found)}")
    return found


def variable(function, argument, value):
    """Returns an argument, which must be an array or a variable.

    Raises:
        TypeError: it is neither.
    """
    array(function, argument, value)
    return value


def dtype(function, argument, array):
    """An array must be in a storage dtype."""
    if array.dtype not in STORAGE_DTYPES:
        raise TypeError(f"{function}: {argument} must be {_NAMES}; found {array.dtype}")


def same_dtype(function, argument, array, other_argument, other):
    """Two arrays must have the same dtype."""
    if array.dtype != other.dtype:
        raise TypeError(
            f"{function}: {argument} must have the dtype of {other_argument}, {other.dtype}; found {array.dtype}: "
            f"use cast()"
        )


def like(function, argument, array, other_argument, other):
    """Two arrays must have the same shape and dtype."""
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
        channels: required C; ``None`` for any.
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
    running = array(function, "running_mean", mean), array(function, "running_var", variance)
    for name, each in zip(("running_mean", "running_var"), running, strict=True):
        if not each.flags.c_contiguous:
            raise ValueError(
                f"{function}: {name} is updated in place and must be contiguous; found strides {each.strides}"
            )
    return running
