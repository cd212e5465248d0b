"""Arrays of a stand-in device whose captured work is done later, as a GPU does it, see ``graph_work``.

Outside of a capture everything is computed at once, with NumPy. Inside of one functions are called for the shapes and
dtypes of their results only. These lie in memory as CuPy's would, see :mod:`benchmarks.cupy_rules`.

NumPy's own functions that make arrays of nothing (``np.zeros``) give arrays of the host, also if it is Chainer that
calls them as ``xp.zeros``: with elements in them they are uploads. What NumPy does with an array without asking it
first, such as ``host[...] = array``, is not noticed; ``np.asarray`` only inside of :func:`conversions_stay`.
"""

import contextlib
import ctypes
import functools
import math
import operator
from unittest import mock

import numpy as np

from benchmarks import cupy_rules
from tests.stand_ins import graph_work

_CONVERSIONS = ("array", "asarray", "ascontiguousarray")
_ABOUT = {
    np.ndim,
    np.shape,
    np.size,
    np.result_type,
    np.can_cast,
    np.may_share_memory,
    np.shares_memory,
    np.iscomplexobj,
}
_LOOKS = {np.array_equal, np.allclose, np.nonzero, np.flatnonzero, np.argwhere, np.unique, np.array_repr, np.array_str}
_IN_PLACE = {np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal}
_READERS = ("__bool__", "__float__", "__int__", "__index__", "__complex__", "__contains__", "__format__", "__reduce__")
_READERS += ("item", "tolist", "tobytes", "nonzero")
_METHODS = (
    "all any argmax argmin argpartition argsort astype choose clip compress conj conjugate copy cumprod cumsum "
    "diagonal dot flatten max mean min prod ravel repeat reshape round searchsorted std sum take trace var"
)
_METHODS_IN_PLACE = "fill partition put sort"


@contextlib.contextmanager
def conversions_stay():
    """Inside of the block ``np.asarray`` and its like, with which Chainer means ``xp.asarray``, leave arrays here."""

    def staying(function):
        @functools.wraps(function)
        def convert(value, *arguments, **keywords):
            if isinstance(value, GraphArray):
                return _call(function, (value, *arguments), keywords)
            return function(value, *arguments, **keywords)

        return convert

    with contextlib.ExitStack() as stack:
        for name in _CONVERSIONS:
            stack.enter_context(mock.patch.object(np, name, staying(getattr(np, name))))
        yield


def new(shape, dtype, strides=None):
    """Returns a new array, full of NaN.

    Args:
        shape, dtype: of it.
        strides: positive, of an array without gaps; ``None`` for C order.
    """
    shape, dtype = (shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype)
    block = graph_work.memory(math.prod(shape) * dtype.itemsize)
    return np.ndarray.__new__(GraphArray, shape, dtype, np.asarray(block), 0, strides)


def array(value):
    """Returns a copy of an array of NumPy, in the same order in memory."""
    copy = new(value.shape, value.dtype, cupy_rules.strides_of("array", value))
    copy.view(np.ndarray)[...] = value
    return copy


def send(link):
    """Moves parameters and persistent arrays of a link to the device, in place of ``to_device``; returns the link."""
    for part in link.links():
        for name in part._persistent:
            if isinstance(part.__dict__[name], np.ndarray):
                part.__dict__[name] = array(part.__dict__[name])
    for param in link.params(include_uninit=False):
        param.array = array(param.array)
        param.cleargrad()
    return link


def send_states(link):
    """Moves the states of update rules that came from a file: Chainer has left them where it takes ``link`` to be."""
    for param in link.params():
        for name, value in (param.update_rule.state or {}).items():
            if isinstance(value, np.ndarray) and not isinstance(value, GraphArray):
                param.update_rule.state[name] = array(value)


def receive(value):
    """Returns a copy on the host, which nobody counts."""
    return np.array(value.view(np.ndarray))


class GraphArray(np.ndarray):
    """An array on the device.

    Attributes:
        reads: how often the host has looked at elements.
    """

    reads = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        function = getattr(ufunc, method)
        if method == "at":
            return _call_in_place(ufunc.__name__, function, inputs, keywords)
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if not any(isinstance(target, np.ndarray) for target in out):
            return _call(function, inputs, keywords, name)
        _call_in_place(ufunc.__name__, function, inputs, {**keywords, "out": out}, out)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function, types, arguments, keywords):
        if function in _ABOUT:
            return function(*_map(_plain, arguments), **_map(_plain, keywords))
        if function in _LOOKS:
            _read(function.__name__)
            return function(*_map(_plain, arguments), **_map(_plain, keywords))
        if function is np.empty_like and not arguments[1:] and not keywords:
            return new(arguments[0].shape, arguments[0].dtype, cupy_rules.strides_of("empty_like", arguments[0]))
        if function in _IN_PLACE:
            return _call_in_place(function.__name__, function, arguments, keywords)
        if keywords.get("out") is not None:
            _call_in_place(function.__name__, function, arguments, keywords, (keywords["out"],))
            return keywords["out"]
        return _call(function, arguments, keywords)

    def __getitem__(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, GraphArray) and part.dtype == bool for part in parts):
            _read("getitem")  # how many there are decides on the shape
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, Ellipsis)  # an element is an array of shape ()
        return _call(operator.getitem, (self, parts), {})

    def __setitem__(self, index, value):
        _call_in_place("setitem", operator.setitem, (self, index, value), {})

    def __iter__(self):
        return (self[place] for place in range(len(self)))

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()


def _counting(name):
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def look(self, *arguments):
        _read(name)
        return method(self.view(np.ndarray), *arguments)

    return look


def _calling(name):
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def call(self, *arguments, **keywords):
        if keywords.get("out") is not None:
            _call_in_place(name, method, (self, *arguments), keywords, (keywords["out"],))
            return keywords["out"]
        return _call(method, (self, *arguments), keywords)

    return call


def _calling_in_place(name):
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def call(self, *arguments, **keywords):
        _call_in_place(name, method, (self, *arguments), keywords)

    return call


for _names, _of in (
    (_READERS, _counting),
    (_METHODS.split(), _calling),
    (_METHODS_IN_PLACE.split(), _calling_in_place),
):
    for _name in _names:
        setattr(GraphArray, _name, _of(_name))


def _read(name):
    graph_work.read(name)
    GraphArray.reads += 1


def _call(function, arguments, keywords, name=None):
    """Calls a function that writes nothing but new arrays, or captures the call; views stay views."""
    name = name or function.__name__
    originals = {}

    def plain(value):
        if isinstance(value, GraphArray):
            view = value.view(np.ndarray)
            view.flags.writeable = False
            originals[id(view)] = value, view
            return view
        return value

    _uploads(name, arguments, keywords)
    if name in ("concatenate", "stack") and len(arguments[0]) > cupy_rules.COPIED:
        graph_work.upload(name, 8 * len(arguments[0]))
    inputs = _map(plain, arguments), _map(plain, keywords)
    with np.errstate(all="ignore"):  # while something is captured, there is anything in the arrays: only shapes count
        result = cupy_rules.compute(function, name, *inputs)
    targets = []

    def keep(value):
        if id(value) in originals:
            return originals[id(value)][0]
        if not isinstance(value, (np.ndarray, np.generic)):
            _read(name)  # a number of Python
            return value
        value = np.asarray(value)
        if not value.size or any(np.may_share_memory(value, view) for _, view in originals.values()):
            view = value.view(GraphArray)
            view.flags.writeable = True
            return view
        target = new(value.shape, value.dtype, cupy_rules.strides_of(name, value))
        targets.append((value, target))
        return target

    kept = _map(keep, result)
    if targets:
        if graph_work.is_capturing():
            inputs = _map(_raw, arguments), _map(_raw, keywords)
            graph_work.do(_compute, function, name, *inputs, [_raw(target) for _, target in targets])
        else:
            for value, target in targets:
                target.view(np.ndarray)[...] = value
    return kept


def _compute(function, name, arguments, keywords, targets):
    results = cupy_rules.compute(function, name, arguments, keywords)
    results = results if isinstance(results, (tuple, list)) else [results]
    for target, result in zip(targets, results, strict=True):
        target[...] = result


def _call_in_place(name, function, arguments, keywords, targets=None):
    """Calls a function that writes into ``targets``, its first argument by default, or captures the call."""
    targets = arguments[:1] if targets is None else targets
    others = [value for value in arguments if not any(value is target for target in targets)]
    _uploads(name, others, {key: value for key, value in keywords.items() if key != "out"})
    if not all(isinstance(target, GraphArray) for target in targets):
        _read(name)  # it goes to the host
    if graph_work.is_capturing():
        graph_work.do(_discard, function, _map(_raw, arguments), _map(_raw, keywords))
    else:
        with np.errstate(all="ignore"):
            function(*_map(_plain, arguments), **_map(_plain, keywords))


def _discard(function, arguments, keywords):
    function(*arguments, **keywords)


def _uploads(name, arguments, keywords):
    def look(value):
        if isinstance(value, np.ndarray) and not isinstance(value, GraphArray) and value.ndim:
            graph_work.upload(name, value.nbytes)

    _map(look, (arguments, keywords))


def _plain(value):
    return value.view(np.ndarray) if isinstance(value, GraphArray) else value


def _raw(value):
    """The same elements by their address: their memory may go to somebody else."""
    if not isinstance(value, GraphArray):
        return value.copy() if isinstance(value, np.ndarray) else value
    low, high = np.lib.array_utils.byte_bounds(value)
    if not value.size:
        return np.empty(value.shape, value.dtype)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
    return np.ndarray(value.shape, value.dtype, memory, value.ctypes.data - low, value.strides)


def _map(function, value):
    """Calls a function with what is in tuples, lists and dicts, and returns the same with what it returns."""
    if isinstance(value, dict):
        return {key: _map(function, part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_map(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return function(value)
