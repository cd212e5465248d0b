"""Makes the batch of a graph dynamic, by comparing its traces at two batch sizes.

``onnx_chainer`` writes the shapes that it sees, including the batch size: ``Reshape`` to (2, 64). A number that is k *
2 in one trace and k * 3 in the other is k times the batch.
"""

import copy

import numpy as np
from onnx import helper, numpy_helper

from mixprec.export.export_error import ExportError

NAME = "N"  # of the dynamic dimension


def make_dynamic(graphs, batches, origins):
    """Makes the first axis of the inputs dynamic, and all shapes that depend on it; in place.

    Args:
        graphs: two :class:`onnx.GraphProto`, which become one: the first is changed. All constants are initializers.
        batches: their batch sizes.
        origins: dict from :func:`mixprec.export.chainer_graph.trace`.

    Raises:
        ExportError: a part of the graph depends on the batch in another way.
    """
    names = _compare_nodes(graphs, origins)
    graph = graphs[0]
    shape = _Shape(graph)
    others = {tensor.name: tensor for tensor in graphs[1].initializer}
    for tensor in list(graph.initializer):
        arrays = [numpy_helper.to_array(each) for each in (tensor, others[names[tensor.name]])]
        if arrays[0].shape == arrays[1].shape and np.array_equal(*arrays, equal_nan=arrays[0].dtype.kind == "f"):
            continue
        where = _described(graph, tensor.name, origins)
        if arrays[0].dtype == np.int64 and arrays[0].ndim <= 1 and arrays[0].shape == arrays[1].shape:
            _replace_shape(graph, tensor, _multiples(arrays, batches, where), shape)
        else:
            _replace_rows(graph, tensor, arrays, batches, where, shape)
    shape.finish()
    for values in ("input", "output"):
        for value, other in zip(getattr(graph, values), getattr(graphs[1], values), strict=True):
            dims = value.type.tensor_type.shape.dim
            for dim, at_other in zip(dims, other.type.tensor_type.shape.dim, strict=True):
                if dim.dim_value != at_other.dim_value:
                    times, rest = divmod(dim.dim_value, batches[0])
                    dim.dim_param = NAME if (times, rest) == (1, 0) else f"{NAME}*{times}" if not rest else "?"


def _compare_nodes(graphs, origins):
    """Returns the name that each value of the first graph has in the second."""
    first, second = (graph.node for graph in graphs)
    if [node.op_type for node in first] != [node.op_type for node in second]:
        raise ExportError("the model calls different functions for another batch size")
    names = {}
    for node, other in zip(first, second, strict=True):
        mine, of_other = ([*each.input, *each.output] for each in (node, other))
        if len(mine) != len(of_other) or any(
            names.setdefault(name, its) != its for name, its in zip(mine, of_other, strict=True)
        ):
            raise ExportError(f"{origin(node, origins)} has different inputs for another batch size")
        if node.attribute != other.attribute:
            raise ExportError(f"{origin(node, origins)} depends on the batch size in its attributes")
    return names


class _Shape:
    """The nodes that compute shapes from the batch size, which come first in a graph."""

    def __init__(self, graph):
        self._graph, self._nodes, self._batch = graph, [], None

    def of(self, multiples, name):
        """Writes the shape whose element i is ``multiples[i]`` = (k, constant) into the value called ``name``."""
        parts = []
        for index, (times, constant) in enumerate(multiples):
            part = f"{name}_{index}"
            if times:
                factor = self._constant(f"{part}_times", [times])
                parts.append(self.node("Mul", [self._rows(), factor], part))
            else:
                parts.append(self._constant(part, [constant]))
        self.node("Concat", parts, name, axis=0)

    def _rows(self):
        if self._batch is None:
            whole = self.node("Shape", [self._graph.input[0].name], "batch_of_shape")
            self._batch = self.node("Gather", [whole, self._constant("batch_axis", [0])], "batch", axis=0)
        return self._batch

    def node(self, operator, inputs, output, **attributes):
        """Adds a node, and returns the name of its output."""
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _constant(self, name, values):
        self._graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def finish(self):
        """Puts the nodes in front of the others."""
        nodes = [*self._nodes, *self._graph.node]
        del self._graph.node[:]
        self._graph.node.extend(nodes)


def _multiples(arrays, batches, where):
    """Returns for each element ``(k, constant)``: k times the batch, or 0 and its value."""
    result = []
    for first, second in zip(*(array.reshape(-1).tolist() for array in arrays), strict=True):
        times, rest = divmod(first, batches[0])
        if first == second:
            result.append((0, first))
        elif rest == 0 and times * batches[1] == second:
            result.append((times, None))
        else:
            raise ExportError(
                f"{where} depends on the batch size: {first} at {batches[0]} rows, {second} at {batches[1]}"
            )
    return result


def _replace_shape(graph, tensor, multiples, shape):
    values = [constant for _, constant in multiples]
    uses = [(node.op_type, list(node.input).index(tensor.name)) for node in graph.node if tensor.name in node.input]
    is_vector = len(tensor.dims) == 1
    if is_vector and set(uses) == {("Reshape", 1)} and values.count(None) == 1 and -1 not in values and 0 not in values:
        inferred = [-1 if value is None else value for value in values]
        tensor.CopyFrom(numpy_helper.from_array(np.array(inferred, np.int64), tensor.name))
        return
    name = tensor.name
    graph.initializer.remove(tensor)
    if is_vector:
        shape.of(multiples, name)
    else:
        shape.of(multiples, f"{name}_vector")
        shape.node("Squeeze", [f"{name}_vector"], name, axes=[0])


def _replace_rows(graph, tensor, arrays, batches, where, shape):
    """A constant with equal rows for each image, such as the first state of an LSTM, is expanded from one of them."""
    first, second = arrays
    sizes = list(zip(first.shape, second.shape, strict=True)) if first.ndim == second.ndim else []
    axes = [axis for axis, (one, other) in enumerate(sizes) if one != other]
    if len(axes) != 1 or any(np.ptp(array, axis=axes[0]).any() for array in arrays):
        raise ExportError(f"{where} has a constant that depends on the batch: {first.shape} and {second.shape}")
    (axis,) = axes
    row = first.take([0], axis)
    multiples = _multiples([np.array(array.shape) for array in arrays], batches, where)
    if not np.array_equal(row, second.take([0], axis)):
        raise ExportError(f"{where} has a constant that depends on the batch: {first.shape} and {second.shape}")
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(row, f"{name}_row"))
    shape.of(multiples, f"{name}_shape")
    shape.node("Expand", [f"{name}_row", f"{name}_shape"], name)


def _described(graph, name, origins):
    user = next((node for node in graph.node if name in node.input), None)
    return "a constant" if user is None else origin(user, origins)


def origin(node, origins):
    """The Chainer function that a node comes from: the name of the node begins with the name of the function."""
    return origins.get(node.name.partition("_tmp_")[0], node.op_type)


def constants_to_initializers(graph):
    """Turns nodes of the kind ``Constant`` into initializers, in place."""
    for node in [node for node in graph.node if node.op_type == "Constant"]:
        tensor = copy.deepcopy(next(attribute.t for attribute in node.attribute if attribute.name == "value"))
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
        graph.node.remove(node)
