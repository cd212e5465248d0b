"""Which arrays the native library takes; all of :mod:`mixprec.backends.native` asks."""

from mixprec.dtypes import BFLOAT16

_STORAGE = "f", "e"


def are_stored_alike(*arrays):
    """Whether arrays (``None`` does not count) are of one shape and one storage dtype, with elements in the last axis."""
    first, *others = [array for array in arrays if array is not None]
    if not (first.dtype == BFLOAT16 or first.dtype.char in _STORAGE) or not first.ndim or not first.shape[-1]:
        return False
    return all(other.dtype == first.dtype and other.shape == first.shape for other in others)
