"""Which arrays the native library takes: all of :mod:`mixprec.backends.native` asks."""

import numpy as np

from mixprec.dtypes import BFLOAT16

_STORAGE = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)


def is_stored(dtype):
    """Whether a dtype of NumPy is one of the storage dtypes, in the processor's order of bytes."""
    return dtype in _STORAGE


def are_stored_alike(first, *others):
    """Whether arrays (``None`` does not count) are of one shape, not (..., 0), and of one storage dtype."""
    if not is_stored(first.dtype) or not first.ndim or not first.shape[-1]:
        return False
    return all(other is None or (other.dtype == first.dtype and other.shape == first.shape) for other in others)
