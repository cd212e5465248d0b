"""The L2 norm of an array, for rules that run parameter by parameter."""

import math

import numpy as np
from chainer.backends import cuda


def norm(array):
    """Returns the L2 norm, accumulated in float64, in which no square of a float32 number overflows or vanishes.

    Returns:
        A float for a NumPy array; for an array on a GPU, an array of shape () there with its dtype: nothing is read.
    """
    if isinstance(array, cuda.ndarray):
        square = "static_cast<double>(x) * static_cast<double>(x)"
        return cuda.reduce("T x", "T y", square, "a + b", "y = sqrt(a)", "0", "norm", reduce_type="double")(array)
    flat = np.reshape(array, -1)
    return math.sqrt(np.einsum("i,i->", flat, flat, dtype=np.float64))
