"""The arguments of a step: arrays get fixed places on the device, everything else is a part of what was captured."""

import chainer

from mixprec.backends import is_of_numpy


class Arguments:
    """Arguments of a call, taken apart; arrays may be in tuples, lists and dicts.

    Args:
        args: tuple of positional arguments.
        kwargs: dict of keyword arguments.

    Attributes:
        arrays: the arrays among them, those of variables too, on the host or on a device.
        key: hashable; equal for arguments that differ in what the arrays hold, and in nothing else.

    Raises:
        TypeError: an argument is neither an array nor hashable, or an array of objects, texts or dates.
    """

    def __init__(self, args, kwargs):
        self._values = args, kwargs
        self.arrays = []
        self.key = self._key_of(self._values)

    def _key_of(self, value):
        if isinstance(value, (tuple, list)):
            return type(value), tuple(map(self._key_of, value))
        if isinstance(value, dict):
            return dict, tuple((name, self._key_of(each)) for name, each in value.items())
        array = value.array if isinstance(value, chainer.Variable) else value
        if not isinstance(array, chainer.get_array_types()):
            try:
                hash(value)
            except TypeError:
                found = type(value).__name__
                raise TypeError(f"an argument is a {found}; allowed are arrays, and what is hashable") from None
            return type(value), value
        if array.dtype.kind in "OSUMm":
            raise TypeError(f"an argument is an array of {array.dtype}, which no device has")
        self.arrays.append(array)
        order = tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
        return isinstance(value, chainer.Variable) and (value.requires_grad,), array.shape, array.dtype, order

    @property
    def shapes(self):
        """Shapes and dtypes of the arrays, as text."""
        return ", ".join(f"{array.shape} {array.dtype}" for array in self.arrays)

    def buffers_on(self, graphs):
        """Returns :class:`Buffers` for such arguments on the device of ``graphs``."""
        buffers = [graphs.empty_like(array) for array in self.arrays]
        return Buffers(graphs, Arguments(*self.with_arrays(buffers)))

    def on_device(self, graphs):
        """Returns ``(args, kwargs)`` with copies on the device in the places of arrays of the host."""
        arrays = []
        for array in self.arrays:
            if is_of_numpy(array):
                array, source = graphs.empty_like(array), array
                graphs.copy(source, array)
            arrays.append(array)
        return self.with_arrays(arrays)

    def with_arrays(self, arrays):
        """Returns ``(args, kwargs)`` with other arrays in the places of these, in new variables where these were."""
        left = iter(arrays)

        def replaced(value):
            if isinstance(value, tuple):
                parts = map(replaced, value)
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
            if isinstance(value, list):
                return list(map(replaced, value))
            if isinstance(value, dict):
                return {name: replaced(each) for name, each in value.items()}
            if isinstance(value, chainer.Variable):
                return chainer.Variable(next(left), requires_grad=value.requires_grad)
            return next(left) if isinstance(value, chainer.get_array_types()) else value

        return replaced(self._values)


class Buffers:
    """Arrays on the device that hold the arguments of one call after the other, always at the same addresses.

    Args:
        graphs: of the device, :class:`~mixprec.backends.graphs.CupyGraphs`.
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
        """Returns ``(args, kwargs)``, with the buffers in the places of the arrays."""
        return self._template.with_arrays(self._template.arrays)
