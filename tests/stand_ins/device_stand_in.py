"""A stand-in for arrays on a GPU: NumPy arrays that count how often the host reads their values.

Whatever turns a value into a Python number or decides on it (``bool``, ``float``, ``int``, ``item``...) would wait for
the device. Elementwise arithmetic, reductions, copies and assignments would not, and stay stand-ins. A plain
``np.asarray`` of a stand-in, which CuPy refuses, is not seen.
"""

import math

import numpy as np

from benchmarks.recording_device.arrays import Array, NumpyMemory


class _Memory(NumpyMemory):
    def new(self, shape, dtype, strides=None):
        size = math.prod(shape) * dtype.itemsize
        return np.ndarray(shape, dtype, np.full(size, 0xFF, np.uint8), 0, strides)  # what is not written is NaN

    def read(self, name):
        DeviceArray.reads += 1

    def write_to_host(self, name):
        """Is no read: what Chainer makes by ``xp.empty`` is an array of NumPy here, and of the device on a GPU."""


class DeviceArray(Array):
    """An array on the device.

    Attributes:
        reads: how often the host has read.
    """

    memory = _Memory()
    reads = 0


def _on_device(value):
    return value.view(DeviceArray)


def send(link):
    """Moves the parameters and persistent arrays of a link to the stand-in device, in place of ``to_device``."""
    from benchmarks.recording_device import null_device  # it imports Chainer, which fake_cupy has to come before

    return null_device.send(link, _on_device)


def array(value):
    """A copy of a NumPy array on the stand-in device."""
    return _on_device(np.array(value))
