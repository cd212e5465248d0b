"""Arrays on a device, as NumPy's: what NumPy's functions do to them goes through the back end of their class.

New arrays lie in memory as CuPy's would, see :mod:`benchmarks.recording_device.cupy_rules`.
"""

import contextlib
import functools
from unittest import mock

import numpy as np

from benchmarks.recording_device import cupy_rules

# Methods by what they do on a device. All others are views, or NumPy makes them of ufuncs.
_READERS = ("__bool__", "__float__", "__int__", "__index__", "__complex__", "__contains__", "__format__", "__repr__")
_READERS += ("__str__", "__reduce__", "__reduce_ex__", "item", "tolist", "tobytes", "nonzero")
_MAKERS = ("argmax", "argmin", "argsort", "astype", "choose", "compress", "copy", "cumprod")
_MAKERS += ("cumsum", "dot", "flatten", "ravel", "repeat", "reshape", "round", "searchsorted", "take", "trace")
_WRITERS = ("fill", "partition", "put", "sort")
# The same of functions.
_READING = {np.allclose, np.argwhere, np.array_equal, np.array_equiv, np.flatnonzero, np.nonzero, np.unique}
_WRITING = {np.copyto, np.fill_diagonal, np.place, np.put, np.put_along_axis, np.putmask}
# Functions that NumPy runs without asking an array.
_CONVERSIONS = ("array", "asarray", "ascontiguousarray")


class NumpyMemory:
    """The back end of arrays that compute at once, in NumPy's memory; nothing is recorded.

    A *call* is ``(arguments, keywords)``, with arrays of the device in it; *given* is the same with arrays of NumPy.
    """

    def new(self, shape, dtype, strides=None):
        """Returns new memory with anything in it, as an array of NumPy.

        Args:
            shape: of the array.
            dtype: of the array.
            strides: of the array, without gaps; ``None`` for C order.
        """
        return np.ndarray(shape, dtype, strides=strides)

    def read(self, name):
        """The host waits for a value; ``name`` is of the function that wants it."""

    def write_to_host(self, name):
        """A function writes what it computes into an array of the host."""
        self.read(name)

    def upload(self, name, *values):
        """Something of the host, described by ``values``, is copied to the device by a function."""

    def write(self, function, name, call, given):
        """Runs a function of NumPy that writes into its arguments; returns its result."""
        return cupy_rules.compute(function, name, *given)

    def fill(self, function, name, call, new):
        """Fills new arrays, pairs of the values and the array, with what a function has returned for a call."""
        for value, array in new:
            array.view(np.ndarray)[...] = value

    def note(self, name, *values):
        """A function that launches something was called."""


class Array(np.ndarray):
    """An array on the device: one of NumPy whose memory has an address there.

    Attributes:
        memory: the :class:`NumpyMemory` of this class.
    """

    memory = NumpyMemory()

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if out:
            keywords["out"] = out
        return self._ask(name, getattr(ufunc, method), inputs, keywords, writes=bool(out) or method == "at")

    def __array_function__(self, function, types, arguments, keywords):
        name = function.__name__
        if function in _READING:
            self.memory.read(name)
        writes = function in _WRITING or keywords.get("out") is not None
        return self._ask(name, function, arguments, keywords, writes, fills=function is not np.empty_like)

    def __getitem__(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Array) and part.dtype == bool for part in parts):
            self.memory.read("getitem")  # how many there are decides on the shape
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, ...)  # a view also of a single element
        parts = tuple(np.asarray(part) if isinstance(part, list) else part for part in parts)
        return self._ask("getitem", np.ndarray.__getitem__, (self, parts))

    def __setitem__(self, index, value):
        if isinstance(value, (list, tuple)):
            value = np.asarray(value)
        if _is_of_host(value):
            self.memory.upload("setitem", self.ctypes.data, index, value)
            self.view(np.ndarray)[index] = value
        else:
            self._ask("setitem", np.ndarray.__setitem__, (self, index, value), writes=True)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def _ask(self, name, function, arguments, keywords=None, writes=False, fills=True):
        """Runs a function of NumPy on the arrays behind those of the device, and notes that.

        Args:
            name: for the note.
            function: the function.
            arguments, keywords: its arguments.
            writes: whether it writes into one of them.
            fills: whether it writes into what it returns, if that is new.

        Returns:
            Its result, on the device: what is new in new memory.
        """
        call = arguments, keywords or {}
        behind, hosts, new = [], [], []
        given = mapped(functools.partial(_laid_bare, behind, hosts), call)
        out = call[1].get("out")
        for target in out if isinstance(out, tuple) else (out,):
            if type(target) is np.ndarray:
                self.memory.write_to_host(name)
                hosts = [host for host in hosts if host is not target]
                behind.append((target, target))
        for host in hosts:
            self.memory.upload(name, host)
        with np.errstate(all="ignore"):
            if writes:
                result = self.memory.write(function, name, call, given)
            else:
                result = cupy_rules.compute(function, name, *given)
        result = mapped(functools.partial(self._on_device, name, behind, new), result)
        if fills:
            self.memory.fill(function, name, call, new)
        if writes or (new and fills):
            self.memory.note(name, call, [array for _, array in new])
        return result

    def _on_device(self, name, behind, new, value):
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        for array, original in behind:
            if value is array:
                return original
        value = np.asarray(value)
        if not value.size or any(np.may_share_memory(value, array) for array, _ in behind):
            return value.view(type(self))
        memory = self.memory.new(value.shape, value.dtype, cupy_rules.strides_of(name, value))
        new.append((value, memory.view(type(self))))
        return new[-1][1]


@contextlib.contextmanager
def conversions_stay():
    """Inside of the block ``np.asarray`` and its like, with which Chainer means ``xp.asarray``, leave arrays here."""
    with contextlib.ExitStack() as stack:
        for name in _CONVERSIONS:
            stack.enter_context(mock.patch.object(np, name, _staying(getattr(np, name))))
        yield


@functools.cache
def _staying(function):
    @functools.wraps(function)
    def convert(value, *arguments, **keywords):
        if isinstance(value, Array):
            return value._ask(function.__name__, function, (value, *arguments), keywords)
        return function(value, *arguments, **keywords)

    return convert


def _laid_bare(behind, hosts, value):
    if isinstance(value, Array):
        behind.append((value.view(np.ndarray), value))
        return behind[-1][0]
    if _is_of_host(value):
        hosts.append(value)
    return value


def _is_of_host(value):
    """Whether it has to be copied to the device: numbers, and arrays of shape (), are arguments of kernels."""
    return type(value) is np.ndarray and value.ndim > 0


def mapped(function, value):
    """Returns what is inside of tuples, lists and dicts with a function applied to it, in their order."""
    if isinstance(value, (tuple, list)):
        parts = [mapped(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {name: mapped(function, part) for name, part in value.items()}
    return function(value)


def _reader(name):
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def read(self, *arguments):
        self.memory.read(name)
        return method(self.view(np.ndarray), *arguments)

    return read


def asking(name, writes=False):
    """Returns a method of arrays by its name in NumPy, which is one launch."""
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def ask(self, *arguments, **keywords):
        writes_out = writes or keywords.get("out") is not None
        return self._ask(name, method, (self, *arguments), keywords, writes_out)

    return ask


for _name in _READERS:
    setattr(Array, _name, _reader(_name))
for _name in _MAKERS + _WRITERS:
    setattr(Array, _name, asking(_name, _name in _WRITERS))
