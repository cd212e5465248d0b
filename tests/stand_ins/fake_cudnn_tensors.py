"""The tensors of :mod:`tests.stand_ins.fake_cudnn`, and how they lie in memory."""

import ctypes
import enum
import math

import ml_dtypes
import numpy as np

data_type = enum.Enum("data_type", "NOT_SET HALF BFLOAT16 FLOAT BOOLEAN")
_DTYPES = {
    data_type.HALF: np.dtype(np.float16),
    data_type.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    data_type.FLOAT: np.dtype(np.float32),
    data_type.BOOLEAN: np.dtype(np.bool_),
}


class Tensor:
    """A tensor of a graph; the setters return it."""

    def __init__(self, name="", dim=None, stride=None, data_type=None, uid=None, value=None, is_virtual=False):
        self.name, self.dim, self.stride, self.data_type, self.uid = name, dim, stride, data_type, uid
        self.value, self.is_virtual = value, is_virtual

    def set_output(self, value):
        self.is_virtual = not value
        return self

    def set_data_type(self, value):
        self.data_type = value
        return self

    def set_uid(self, value):
        self.uid = value
        return self

    def set_dim(self, value):
        self.dim = list(value)
        return self

    def set_stride(self, value):
        self.stride = list(value)
        return self

    @property
    def dtype(self):
        return _DTYPES[self.data_type]

    def rounded(self, value):
        """Returns a float64 array rounded to the tensor's dtype, as float64."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(value).astype(self.dtype).astype(np.float64)


def _extent(tensor):
    """The number of elements from the first to the last in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.dim, tensor.stride, strict=True))


def _memory(tensor, address):
    """Returns the bytes at an address as uint8."""
    extent = _extent(tensor)
    size = math.ceil(extent / 8) if tensor.dtype == np.bool_ else extent * tensor.dtype.itemsize
    assert address % 16 == 0, f"{tensor.name}: the address is not a multiple of 16"  # the frontend has told cuDNN so
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _in_logical_order(tensor, flat):
    strides = [step * flat.itemsize for step in tensor.stride]
    return np.ndarray(tensor.dim, flat.dtype, flat, strides=strides)  # as_strided() takes five times as long


def read(tensor, address):
    """Returns what is at an address as float64, in the order of the dimensions."""
    memory = _memory(tensor, address)
    if tensor.dtype == np.bool_:
        flat = np.unpackbits(memory, count=_extent(tensor), bitorder="little")
    else:
        flat = memory.view(tensor.dtype)
    return _in_logical_order(tensor, flat).astype(np.float64)


def write(tensor, address, value):
    """Rounds an array of float64 to the dtype of the tensor and puts it at an address."""
    memory = _memory(tensor, address)
    if tensor.dtype == np.bool_:
        flat = np.zeros(_extent(tensor), np.bool_)
        _in_logical_order(tensor, flat)[...] = value != 0
        memory[...] = np.packbits(flat, bitorder="little")
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            _in_logical_order(tensor, memory.view(tensor.dtype))[...] = value
