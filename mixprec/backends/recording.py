"""A stand-in for a CUDA device that computes nothing and writes down what it is asked.

Arrays are of NumPy, with anything in them: they know address, shape and dtype. The primitives of such an array are
those of :mod:`mixprec.backends.cuda`, with a launcher and a cuDNN that only take notes; what is done to arrays by
NumPy's functions, where CuPy would launch a kernel, is noted too.
"""

import contextlib
import functools
import inspect
from typing import NamedTuple

import numpy as np

from mixprec import backends
from mixprec.backends.primitives import Primitives

_READERS = ("__bool__", "__float__", "__int__", "__index__", "__complex__", "item", "tolist", "tobytes")
_notes = None
_calls = None
_primitive = ""


class Note(NamedTuple):
    """One thing that a device was asked.

    Attributes:
        kind: ``"kernel"`` (of our own), ``"cudnn"``, ``"array"`` (a function of NumPy that would launch), ``"upload"``
            or ``"read"`` (the host would wait for the device).
        name: of the kernel, the kind of operation, the function.
        arguments: what it was called with: numbers and addresses; the operation and addresses for cuDNN.
        primitive: name of the primitive that asked, of the outermost one; empty for what nobody of mixprec asked.
    """

    kind: str
    name: str
    arguments: tuple
    primitive: str


class Spec(NamedTuple):
    """What stands for an array in a :class:`Call`.

    Attributes:
        shape: of the array.
        dtype: name of its dtype.
    """

    shape: tuple
    dtype: str


class Call(NamedTuple):
    """A call of a primitive, as values: two calls that do the same on other arrays are equal.

    Attributes:
        name: of the primitive.
        arguments: its arguments, a :class:`Spec` in the place of each array.
        keywords: its keyword arguments, likewise, as sorted pairs of name and value.
    """

    name: str
    arguments: tuple
    keywords: tuple


@contextlib.contextmanager
def calls():
    """Collects the calls of primitives inside of the block in the list that it gives, of :class:`Call`."""
    global _calls
    outer, _calls = _calls, []
    try:
        yield _calls
    finally:
        _calls = outer


@contextlib.contextmanager
def recording():
    """Collects what is asked inside of the block in the list that it gives, of :class:`Note`."""
    global _notes
    outer, _notes = _notes, []
    try:
        yield _notes
    finally:
        _notes = outer


def array(value):
    """Returns a copy of an array of NumPy on the device."""
    return np.array(value).view(Array)


def send(link, array_type=None):
    """Moves parameters and persistent arrays of a link to the device, in place of ``to_device``; returns the link.

    Args:
        link: any :class:`chainer.Link` on NumPy.
        array_type: what its arrays become, a subclass of NumPy's; ``None`` for :class:`Array`.
    """
    array_type = array_type or Array
    for part in link.links():
        for name in part._persistent:
            if isinstance(part.__dict__[name], np.ndarray):
                part.__dict__[name] = part.__dict__[name].view(array_type)
    for param in link.params(include_uninit=False):
        param.array = param.array.view(array_type)
        param.cleargrad()
    return link


class Array(np.ndarray):
    """An array on the device."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        _note("array", ufunc.__name__)
        plain_out = {"out": tuple(map(_plain, out))} if out else {}
        with np.errstate(all="ignore"):
            result = getattr(ufunc, method)(*map(_plain, inputs), **plain_out, **keywords)
        return out[0] if len(out) == 1 else _wrapped(result)

    def __array_function__(self, function, types, arguments, keywords):
        with recording(), np.errstate(all="ignore"):  # of its own, for what a function of NumPy is made of
            result = super().__array_function__(function, types, arguments, keywords)
        is_new = isinstance(result, (np.ndarray, np.generic)) and not np.may_share_memory(result, self)
        if is_new and function is not np.empty_like:
            _note("array", function.__name__)
        return _wrapped(result)

    def __getitem__(self, index):
        return _wrapped(super().__getitem__(index))

    def __setitem__(self, index, value):
        _note("array", "setitem")
        super().__setitem__(index, value)

    def astype(self, dtype, *arguments, **keywords):
        """As of NumPy."""
        with np.errstate(all="ignore"):
            result = super().astype(dtype, *arguments, **keywords)
        if result is not self:
            _note("array", "astype")
        return result

    def fill(self, value):
        """As of NumPy."""
        _note("array", "fill")
        super().fill(value)

    def copy(self, order="C"):
        """As of NumPy."""
        _note("array", "copy")
        return super().copy(order)


def _reader(name):
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def read(self, *arguments):
        _note("read", name)
        return method(self, *arguments)

    return read


for _name in _READERS:
    setattr(Array, _name, _reader(_name))


class Launcher:
    """In place of :class:`~mixprec.backends.launch.CupyLauncher`."""

    threads = 256

    def compile(self, source, names):
        """Returns the names by themselves."""
        return {name: name for name in names}

    def launch(self, kernel, blocks, arguments):
        """Notes a launch."""
        _note("kernel", kernel, blocks, *arguments)

    def address(self, value):
        """Returns the address of the first element."""
        return value.ctypes.data

    def empty(self, shape, dtype):
        """Returns a new array."""
        return np.empty(shape, dtype).view(Array)

    def full(self, shape, value, dtype):
        """Returns a new array, and notes that it is filled."""
        _note("array", "fill")
        return np.full(shape, value, dtype).view(Array)

    def zero(self, value):
        """Fills an array with zeros, and notes that."""
        value.fill(0)


class Dnn:
    """In place of :class:`~mixprec.backends.cudnn.dnn.Dnn`: supports what cuDNN 9 does on an H200."""

    def supports(self, operation):
        """Whether there is an engine."""
        x, has = operation.inputs[0], operation.has
        if operation.kind.startswith("batch_norm"):
            adds_only = "add" in has and not operation.attribute("relu")
            return x.shape[-1] % (4 if x.dtype == "float32" else 8) == 0 and not adds_only
        if "scale" in has:
            return operation.kind == "conv_fprop" and x.dtype != "float32" and "sum" not in has
        if "sum" in has:
            k, r, s, c = operation.inputs[1].shape
            return x.dtype == "float16" and max(r, s) <= 5 and k % 8 == c % 8 == 0
        return True

    def plan(self, operation):
        """Returns an object whose ``run`` notes the operation."""
        return _Plan(operation)

    def choose(self, key, candidates):
        """Returns the name of the first."""
        return candidates[0][0]


class _Plan:
    def __init__(self, operation):
        self.operation = operation

    def run(self, *addresses):
        _note("cudnn", self.operation.kind, self.operation, *addresses)


def _note(kind, name, *arguments):
    if _notes is not None:
        _notes.append(Note(kind, name, arguments, _primitive))


def _plain(value):
    return value.view(np.ndarray) if isinstance(value, Array) else value


def _wrapped(value):
    return np.asarray(value).view(Array) if isinstance(value, (np.ndarray, np.generic)) else value


def install():
    """Makes :func:`mixprec.backends.primitives_of` know such arrays."""
    from mixprec.backends import cuda

    primitives = cuda.Cuda(Launcher(), Dnn())
    for name, contract in vars(Primitives).items():
        if inspect.isfunction(contract):
            setattr(primitives, name, _named(name, getattr(primitives, name)))
    backends.register(Array, primitives)


def _named(name, primitive):
    @functools.wraps(primitive)
    def call(*arguments, **keywords):
        global _primitive
        if _calls is not None and not _primitive:
            _calls.append(Call(name, _specs(arguments), tuple(sorted((k, _specs(v)) for k, v in keywords.items()))))
        outer, _primitive = _primitive, _primitive or name
        try:
            return primitive(*arguments, **keywords)
        finally:
            _primitive = outer

    return call


def _specs(value):
    """Puts a :class:`Spec` in the place of arrays, also those in tuples."""
    if isinstance(value, np.ndarray):
        return Spec(value.shape, value.dtype.name)
    if isinstance(value, tuple):
        parts = map(_specs, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
