"""The one place where the host reads a value that a device computed.

A read waits until the device has done all that was asked of it before, and until then nothing new can be asked: on a
fast GPU that costs more than the computation. ``docs/numerics.md`` lists who reads, and when.
"""

import numpy as np


def known(value):
    """Whether the host can look at ``value`` without waiting: a Python or NumPy number, or a NumPy array."""
    return type(value) is np.ndarray or isinstance(value, (bool, int, float, np.generic))


def read(value):
    """Returns a number or an array of shape () as a Python number, waiting for its device if need be."""
    return value.item() if hasattr(value, "item") else value
