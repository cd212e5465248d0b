"""Numbers on a device that may change in each step: a graph reads them from fixed addresses."""

import numpy as np
from chainer import backend

from mixprec.backends import launcher_of
from mixprec.base.scoped import scoped


def filled(shape, value, dtype, like):
    """Returns a new array filled with a number, on the device of the array ``like``."""
    launcher = launcher_of(like)
    return np.full(shape, value, dtype) if launcher is None else launcher.full(shape, value, dtype)


class DeviceNumbers:
    """Float32 arrays of shape () that are written only if their numbers have changed.

    Attributes:
        arrays: dict from names to the arrays.
        is_fixed: whether nothing is written, see :meth:`fixed`.
    """

    def __init__(self):
        self.arrays = {}
        self._values = {}
        self.is_fixed = False

    def take(self, values, like):
        """Writes numbers to a device.

        Args:
            values: dict from names to numbers; the names may change.
            like: array on the device.
        """
        for name in self.arrays.keys() - values.keys():
            del self.arrays[name]
        for name, value in values.items():
            array = self.arrays.get(name)
            if array is None or backend.get_device_from_array(array) != backend.get_device_from_array(like):
                self.arrays[name], self._values[name] = filled((), value, np.float32, like), value
        self.refresh(values)

    def refresh(self, values):
        """Writes changed numbers; ignores names that were not given to :meth:`take`."""
        for name, array in self.arrays.items():
            if not self.is_fixed and name in values and values[name] != self._values[name]:
                array.fill(values[name])
                self._values[name] = values[name]

    def fixed(self):
        """A context in which nothing is written, for a capture: a graph would repeat the write."""
        return scoped(self, is_fixed=True)
