"""Between storage dtype and float32 on NumPy: widening, and rounding once.

Both go block by block: a block of float32 with what is computed from it stays in a processor's second-level cache.
"""

import threading

import numpy as np

from mixprec.backends import half

BLOCK = 1 << 15  # elements
_WIDE = (np.dtype(np.float32), np.dtype(np.float64))


class _Scratch(threading.local):
    """What rounding to float16 needs, for each thread its own."""

    def __init__(self):
        self.rounding = half.Rounding(BLOCK)


_SCRATCH = _Scratch()


def widen(x):
    """Returns an array as float32, exactly; float32 and float64 as they are, without a copy.

    Args:
        x: float16, bfloat16, float32 or float64, any shape.
    """
    if x.dtype in _WIDE:
        return x
    out = np.empty(x.shape, np.float32)
    widen_to(x, out)
    return out


def narrow(x, dtype):
    """Returns a float32 array rounded to nearest even; ``x`` itself if it has the dtype. Overflow is inf, no warning.

    Args:
        x: float32, any shape.
        dtype: float16, bfloat16 or float32.
    """
    if x.dtype == dtype:
        return x
    out = np.empty(x.shape, dtype)
    narrow_to(x, out)
    return out


def widen_to(x, out):
    """Writes an array of any storage dtype to a C-contiguous float32 array of the same shape."""
    if x.dtype != np.float16:
        np.copyto(out, x)
        return
    for source, target in _blocks(x, out):
        if half.is_finite(source):
            half.widen(source, target)
        else:
            with np.errstate(invalid="ignore"):  # a signalling NaN
                np.copyto(target, source)


def narrow_to(x, out):
    """Rounds a float32 array into a C-contiguous array of the same shape and any storage dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        if out.dtype != np.float16:
            np.copyto(out, x, casting="unsafe")
            return
        for source, target in _blocks(x, out):
            _SCRATCH.rounding(source, target)


def _blocks(source, target):
    """Yields parts of two arrays of the same shape, flat."""
    source, target = source.reshape(-1), target.reshape(-1)
    for start in range(0, source.size, BLOCK):
        yield source[start : start + BLOCK], target[start : start + BLOCK]
