"""The dtypes that parameters and images have: NumPy's, and bfloat16 of ``ml_dtypes``."""

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
# What arrays of a network are stored in. Computing is float32 in any case.
STORAGE_DTYPES = frozenset((np.dtype(np.float16), BFLOAT16, FLOAT32))
_HALF = (np.dtype(np.float16), BFLOAT16)
# Up to which magnitude a number is rounded to 0, and from which one on to inf.
LIMITS = {_HALF[0]: (2.0**-25, 65520.0), BFLOAT16: (2.0**-134, 2.0**128 - 2.0**119)}


def is_half(dtype):
    """Whether a parameter in this dtype has an FP32 master of its own: float16 and bfloat16, but no wider one."""
    return dtype in _HALF
