"""Arrays of a stand-in device whose captured work is done later, as a GPU does it, see ``graph_work``.

Outside of a capture everything is computed at once, with NumPy. Inside of one functions are called for the shapes and
dtypes of their results only.

NumPy's own functions that make arrays of nothing (``np.zeros``) give arrays of the host, also if it is Chainer that
calls them as ``xp.zeros``: with elements in them they are uploads. What NumPy does with an array without asking it
first, such as ``host[...] = array``, is not noticed.
"""

import ctypes
import math

import numpy as np

from benchmarks.recording_device import cupy_rules, null_device
from benchmarks.recording_device.arrays import Array, NumpyMemory, asking, mapped
from tests.stand_ins import graph_work

_REDUCTIONS = "all any argpartition clip conj conjugate diagonal max mean min prod std sum var"


class _Memory(NumpyMemory):
    """The back end: what is asked while a graph is captured is computed when it is launched."""

    def new(self, shape, dtype, strides=None):
        memory = np.asarray(graph_work.memory(math.prod(shape) * dtype.itemsize))
        return np.ndarray(shape, dtype, memory, 0, strides)

    def read(self, name):
        graph_work.read(name)
        GraphArray.reads += 1

    def upload(self, name, *values):
        graph_work.upload(name)

    def write(self, function, name, call, given):
        if not graph_work.is_capturing():
            return super().write(function, name, call, given)
        arguments, keywords = mapped(raw, call)
        graph_work.do(lambda: function(*arguments, **keywords))
        out = given[1].get("out")
        return out[0] if isinstance(out, tuple) and len(out) == 1 else out

    def fill(self, function, name, call, new):
        if not graph_work.is_capturing():
            super().fill(function, name, call, new)
        elif new:
            graph_work.do(_compute, function, name, mapped(raw, call), [raw(array) for _, array in new])


def _compute(function, name, call, targets):
    results = cupy_rules.compute(function, name, *call)
    for target, result in zip(targets, results if isinstance(results, (tuple, list)) else [results], strict=True):
        target[...] = result


class GraphArray(Array):
    """An array on the device.

    Attributes:
        reads: how often the host has looked at elements.
    """

    memory = _Memory()
    reads = 0

    def __array_function__(self, function, types, arguments, keywords):
        if function in (np.concatenate, np.stack) and len(arguments[0]) > cupy_rules.COPIED:
            self.memory.upload(function.__name__)  # of the addresses
        return super().__array_function__(function, types, arguments, keywords)


for _name in _REDUCTIONS.split():
    setattr(GraphArray, _name, asking(_name))


def new(shape, dtype, strides=None):
    """Returns a new array, full of NaN.

    Args:
        shape, dtype: of it.
        strides: positive, of an array without gaps; ``None`` for C order.
    """
    return GraphArray.memory.new(tuple(shape), np.dtype(dtype), strides).view(GraphArray)


def array(value):
    """Returns a copy of an array of NumPy, in the same order in memory."""
    copy = new(value.shape, value.dtype, cupy_rules.strides_of("array", value))
    copy.view(np.ndarray)[...] = value
    return copy


def send(link):
    """Moves parameters and persistent arrays of a link to the device, in place of ``to_device``; returns the link."""
    return null_device.send(link, array)


def send_states(link):
    """Moves the states of update rules that came from a file: Chainer has left them where it takes ``link`` to be."""
    for param in link.params():
        for name, value in (param.update_rule.state or {}).items():
            if isinstance(value, np.ndarray) and not isinstance(value, GraphArray):
                param.update_rule.state[name] = array(value)


def receive(value):
    """Returns a copy on the host, which is not counted."""
    return np.array(value.view(np.ndarray))


def raw(value):
    """Returns the same elements by their address, as their memory may go to another array; a copy of numbers."""
    if not isinstance(value, GraphArray):
        return value.copy() if isinstance(value, np.ndarray) else value
    low, high = np.lib.array_utils.byte_bounds(value)
    if not value.size:
        return np.empty(value.shape, value.dtype)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
    return np.ndarray(value.shape, value.dtype, memory, value.ctypes.data - low, value.strides)
