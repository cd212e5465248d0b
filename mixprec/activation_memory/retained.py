"""Finds the arrays that function nodes retain for the backward pass, and the nodes that can be recomputed.

A :class:`Reference` is one reference to an array: the data of a variable node, a retained output, or an attribute of a
function node. Chainer reads them only when the function goes backward.
"""

import copy
import weakref

import chainer

_LIBRARIES = ("chainer.", "mixprec.")
# Functions of Chainer with attributes that their callers read: masks, indexes, noise.
_READ_BY_USERS = ("chainer.functions.noise.", "chainer.functions.pooling.", "chainer.functions.activation.rrelu")
# Functions of Chainer whose forward pass depends only on their inputs, and has no side effects.
_REPEATABLE = {
    *("Add", "AddConstant", "MultiAdd", "Sub", "SubFromConstant", "Mul", "MulConstant", "Neg", "Concat", "Cast"),
    *("ReLU", "LeakyReLU", "ClippedReLU", "Sigmoid", "Tanh", "ELU", "Softplus", "HardSigmoid", "Swish"),
    *("Reshape", "Transpose", "SplitAxis", "GetItem", "Squeeze", "ExpandDims", "Pad", "Crop", "ResizeImages"),
    *("MaxPooling2D", "AveragePooling2D", "MaxPoolingND", "AveragePoolingND", "Unpooling2D", "UnpoolingND"),
    *("Convolution2DFunction", "Deconvolution2DFunction", "ConvolutionND", "DeconvolutionND", "LinearFunction"),
    *("LSTM", "LocalResponseNormalization", "LayerNormalization"),
}
_MOVING_STATISTICS = {"BatchNormalization"}  # Chainer's, unless its running statistics are removed


class Reference:
    """One reference of a graph to an array.

    Args:
        owner: variable node or function node; a weak reference is kept.
        name: name of the attribute.
        index: index of the element, if the attribute is a tuple or a list.
    """

    def __init__(self, owner, name, index=None):
        self._owner = weakref.ref(owner)
        self.name = name
        self.index = index
        self.key = id(owner), name, index

    @property
    def owner(self):
        """The node, or ``None`` if it no longer exists."""
        return self._owner()

    def get(self):
        """Returns the array, or ``None``."""
        owner = self._owner()
        value = None if owner is None else vars(owner).get(self.name)
        return value if self.index is None or value is None else value[self.index]

    def put(self, array):
        """Makes the graph refer to an array, or to ``None``."""
        owner = self._owner()
        if owner is None:
            return
        if self.index is None:
            vars(owner)[self.name] = array
            return
        kept = vars(owner)[self.name]
        values = list(kept)
        values[self.index] = array
        vars(owner)[self.name] = kept._make(values) if hasattr(kept, "_make") else type(kept)(values)


def references_of(function):
    """Yields ``(reference, array)`` for all arrays that a function node has retained; called right after its forward.

    Inputs that were not computed by a function, such as parameters and batches, are left out, and so are arrays that
    share their memory. For functions that are not Chainer's or mixprec's, only inputs and outputs are included.
    """
    for index in function._input_indexes_to_retain or ():
        node = function.inputs[index]
        if node.creator_node is not None and node.data is not None:
            yield Reference(node, "_data"), node.data
    for index, array in enumerate(function._retained_output_data or ()):
        if array is None:
            continue
        yield Reference(function, "_retained_output_data", index), array
        node = function.outputs[function._output_indexes_to_retain[index]]()
        if node is not None and node.data is not None:
            yield Reference(node, "_data"), node.data
    for owner in (function, getattr(function, "function", None)):
        if owner is not None and type(owner).__module__.startswith(_LIBRARIES):
            yield from _fields(owner)


def _fields(owner):
    if type(owner).__module__.startswith(_READ_BY_USERS):
        return
    arrays = chainer.get_array_types()
    for name, value in list(vars(owner).items()):
        if name == "_retained_output_data":
            continue
        if isinstance(value, arrays):
            yield Reference(owner, name), value
        elif isinstance(value, (tuple, list)):
            for index, each in enumerate(value):
                if isinstance(each, arrays):
                    yield Reference(owner, name, index), each


def leaves_of(function):
    """Returns the arrays of the inputs of a function node that were not computed by functions."""
    arrays = [array_of(node) for node in function.inputs if node.creator_node is None]
    return [array for array in arrays if array is not None]


def array_of(node):
    """Returns the array of a variable node, from the node or its live variable, or ``None``."""
    if node.data is not None:
        return node.data
    variable = node.get_variable_or_none()
    return None if variable is None else variable.raw_array


def again(function):
    """Returns a function node that repeats the computation of a function node without side effects, or ``None``."""
    if hasattr(function, "again"):
        return function.again()
    cls = type(function)
    if not cls.__module__.startswith("chainer.functions."):
        return None
    if cls.__name__ in _REPEATABLE:
        return copy.copy(function)
    if cls.__name__ in _MOVING_STATISTICS:
        twin = copy.copy(function)
        twin.running_mean = twin.running_var = None
        return twin
    return None


def is_convolution(function):
    """Whether a function node is a convolution."""
    return "onvolution" in type(function).__name__
