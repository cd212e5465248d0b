"""The arguments of a captured step.

A graph reads its arguments at fixed addresses: :class:`Buffers`, into which each call copies its arrays. All other
arguments are frozen in the graph, and are therefore a part of the key of a specialization.
"""

import copy
import functools

import chainer
import numpy as np

from mixprec.backends import is_of_numpy
from mixprec.backends.memory import axes

_NUMBERS = "biufcV"  # kinds of dtypes that a device supports; V is bfloat16


class Arguments:
    """The arguments of a call, with their arrays extracted; arrays may be in tuples, lists and dicts.

    Args:
        args: tuple of positional arguments.
        kwargs: dict of keyword arguments.

    Attributes:
        arrays: all arrays in the arguments, on the host or on a device, including arrays of variables, but not of
            parameters.
    """

    def __init__(self, args, kwargs):
        self._values = args, kwargs
        self.arrays = list(_arrays_in(self._values))

    @functools.cached_property
    def key(self):
        """A hashable value; equal for arguments that differ only in the values of their arrays.

        Raises:
            TypeError: an argument cannot be given to a graph, or cannot be compared with the next call's.
        """
        return _key_of(self._values)

    @property
    def shapes(self):
        """Shapes and dtypes of the arrays, as text."""
        return ", ".join(f"{array.shape} {array.dtype}" for array in self.arrays)

    def buffers_on(self, graphs):
        """Returns :class:`Buffers` for such arguments on the device of ``graphs``."""
        buffers = [graphs.empty_like(array) for array in self.arrays]
        return Buffers(graphs, Arguments(*self.with_arrays(buffers)))

    def on_device(self, graphs):
        """Returns ``(args, kwargs)`` with host arrays copied to the device.

        Variables on the device are not replaced: they may have a graph, and get a gradient.
        """
        arrays = []
        for array in self.arrays:
            if is_of_numpy(array):
                array, source = graphs.empty_like(array), array
                graphs.copy(source, array)
            arrays.append(array)
        return self.with_arrays(arrays, keep=True)

    def with_arrays(self, arrays, keep=False):
        """Returns ``(args, kwargs)`` with these arrays replaced; variables are replaced by new variables.

        Args:
            arrays: the new arrays, as many as :attr:`arrays`.
            keep: whether to keep variables whose array stays the same.
        """
        return _replaced(self._values, iter(arrays), keep)


# Not inside of with_arrays: a nested function that calls itself is a reference cycle, which would hold the arrays until
# Python's collector runs.
def _replaced(value, arrays, keep):
    if isinstance(value, tuple):
        parts = [_replaced(each, arrays, keep) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [_replaced(each, arrays, keep) for each in value]
    if isinstance(value, dict):
        result = copy.copy(value)  # also of a subclass
        for name, each in value.items():
            result[name] = _replaced(each, arrays, keep)
        return result
    if (array := _array_of(value)) is None:
        return value
    new = next(arrays)
    if not isinstance(value, chainer.Variable):
        return new
    return value if keep and new is array else chainer.Variable(new, requires_grad=value.requires_grad)


def _array_of(value):
    """Returns the array of an argument; ``None`` for a parameter, which belongs to the model, and for strings."""
    if isinstance(value, chainer.Variable):
        return None if isinstance(value, chainer.Parameter) else value.array
    return value if isinstance(value, chainer.get_array_types()) and value.dtype.kind in _NUMBERS else None


def _arrays_in(value):
    if isinstance(value, (tuple, list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _arrays_in(each)
    elif (array := _array_of(value)) is not None:
        yield array


def _key_of(value):
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_key_of, value))
    if isinstance(value, dict):
        return type(value), tuple((name, _key_of(each)) for name, each in value.items())
    array = _array_of(value)
    if isinstance(value, chainer.Parameter):
        return chainer.Parameter, id(value)  # the arguments keep it alive
    if array is None:
        try:
            hash(value)
        except TypeError:
            if isinstance(value, chainer.get_array_types()):
                raise TypeError(f"an argument is an array of {value.dtype}, which no device supports") from None
            found = type(value).__name__
            raise TypeError(f"an argument is a {found}; allowed are arrays and hashable objects") from None
        # -0.0 == 0.0, and NaN equals no number
        return type(value), repr(value) if isinstance(value, (float, complex, np.inexact)) else value
    order = axes(array)
    if not isinstance(value, chainer.Variable):
        return array.shape, array.dtype, order
    if value.creator_node is not None:
        raise TypeError("an argument is a computed variable, and the backward pass would continue beyond it")
    return chainer.Variable, value.requires_grad, array.shape, array.dtype, order


class Buffers:
    """Arrays on the device that hold the arguments of every call at the same addresses.

    Args:
        graphs: :class:`~mixprec.graph_capture.cuda_graphs.CupyGraphs` of the device.
        template: :class:`Arguments` whose arrays are the buffers.
    """

    def __init__(self, graphs, template):
        self._graphs, self._template = graphs, template

    def fill(self, arguments):
        """Copies the arrays of a call with the same key; the host does not wait."""
        for source, target in zip(arguments.arrays, self._template.arrays, strict=True):
            if source is not target:
                self._graphs.copy(source, target)

    def arguments(self):
        """Returns ``(args, kwargs)`` with the buffers in place of the arrays."""
        return self._template.with_arrays(self._template.arrays)
