"""The difference of two arrays on the device, for the comparison of engines."""

import numpy as np

from mixprec.backends.launch import text_of

_DTYPES = ("float16", "bfloat16", "float32")  # Dtype in words.cuh
BLOCKS = 256
# An element that is not finite in one array only does not count if the other one's is near the end of the dtype's
# range, where two engines may round to different sides.
_LIMITS = {"float32": 2.0**127, "float16": 2.0**15, "bfloat16": 2.0**127}


def source():
    """Returns the CUDA source of the kernel."""
    return "".join(text_of("mixprec.backends", name) for name in ("words.cuh", "difference.cu"))


def arguments(a, b, count, dtype, found):
    """Returns the arguments of the kernel: addresses, number of elements, dtype by name, address for results."""
    return a, b, count, _DTYPES.index(dtype), _LIMITS[dtype], found


def result(found):
    """Returns ``(largest |a - b|, largest |a|, number of elements that are finite in one array only)``.

    Args:
        found: results of the threads, (threads, 3) float32.
    """
    largest, scale = np.max(found[:, :2], 0)
    return float(largest), float(scale), int(found[:, 2].sum(dtype=np.float64))
