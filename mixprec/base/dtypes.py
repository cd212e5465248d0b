"""The dtypes of parameters and images: NumPy's, and bfloat16 of ``ml_dtypes``."""

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
# Storage dtypes of the arrays of a network. Computation is always in float32.
STORAGE_DTYPES = frozenset((np.dtype(np.float16), BFLOAT16, FLOAT32))
_HALF = (np.dtype(np.float16), BFLOAT16)
# The largest magnitude that is rounded to 0, and the smallest that is rounded to inf.
LIMITS = {_HALF[0]: (2.0**-25, 65520.0), BFLOAT16: (2.0**-134, 2.0**128 - 2.0**119)}


def is_half(dtype):
    """Whether a parameter in this dtype has an FP32 master with its own array: float16 and bfloat16."""
    return dtype in _HALF
