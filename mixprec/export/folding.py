"""Constant folding in a graph: batch normalizations into the layers before them, and moved weights."""

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

_MOVES = {"Concat", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}  # which only move numbers


def fold_moves(graph):
    """Folds nodes that only move constants, such as the filters of a depthwise convolution; in place.

    Args:
        graph: :class:`onnx.GraphProto`, whose nodes are in order.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type in _MOVES and all(name in tensors for name in node.input):
            arrays = {name: numpy_helper.to_array(tensors[name]) for name in node.input}
            (moved,) = ReferenceEvaluator(node).run(None, arrays)
            tensor = numpy_helper.from_array(np.ascontiguousarray(moved), node.output[0])
            tensors[tensor.name] = tensor
            graph.initializer.append(tensor)
            graph.node.remove(node)
    drop_unused(graph)


def fold_batch_normalizations(graph):
    """Removes every ``BatchNormalization`` from a graph, in place.

    If it follows a convolution, a transposed convolution or a ``Gemm`` whose output has no other consumer, it is folded
    into weights and bias: W * gamma / sqrt(var + eps), and (b - mean) * gamma / sqrt(var + eps) + beta. Otherwise it
    becomes a multiplication and an addition.

    Args:
        graph: :class:`onnx.GraphProto` whose statistics are initializers. Float64 is rounded once.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    for node in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        x, *statistics = node.input
        gamma, beta, mean, var = (numpy_helper.to_array(tensors[name]).astype(np.float64) for name in statistics)
        eps = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5)
        scale = gamma / np.sqrt(var + eps)
        shift = beta - mean * scale
        layer = makers.get(x)
        if layer is not None and _can_take(layer, graph, tensors):
            _scale(layer, scale, shift, graph, tensors)
            layer.output[0] = node.output[0]
            makers[node.output[0]] = layer
            graph.node.remove(node)
        else:
            _replace(node, scale, shift, graph)
    drop_unused(graph)


def _can_take(layer, graph, tensors):
    if layer.op_type not in ("Conv", "ConvTranspose", "Gemm"):
        return False
    used = [name for node in graph.node for name in node.input] + [value.name for value in graph.output]
    attributes = attributes_of(layer)
    plain = layer.op_type != "Gemm" or (attributes.get("alpha", 1) == attributes.get("beta", 1) == 1)
    return plain and used.count(layer.output[0]) == 1 and all(name in tensors for name in layer.input[1:])


def _scale(layer, scale, shift, graph, tensors):
    weights, *bias = (numpy_helper.to_array(tensors[name]).astype(np.float64) for name in layer.input[1:])
    attributes = attributes_of(layer)
    if layer.op_type == "Gemm":
        scaled = weights * (scale[:, None] if attributes.get("transB") else scale)
    elif layer.op_type == "Conv":
        scaled = weights * scale.reshape(-1, *[1] * (weights.ndim - 1))
    else:  # filters of a transposed convolution: (channels, channels of the output / groups, ...)
        groups = attributes.get("group", 1)
        grouped = weights.reshape(groups, -1, *weights.shape[1:])
        scaled = (grouped * scale.reshape(groups, 1, -1, *[1] * (weights.ndim - 2))).reshape(weights.shape)
    new = {"weights": scaled, "bias": (bias[0] if bias else 0) * scale + shift}
    del layer.input[1:]
    for name, array in new.items():
        tensor = numpy_helper.from_array(array.astype(np.float32), f"{layer.output[0]}_{name}")
        graph.initializer.append(tensor)
        tensors[tensor.name] = tensor
        layer.input.append(tensor.name)


def _replace(node, scale, shift, graph):
    """Replaces a normalization of (N, C, ...) by a multiplication and an addition."""
    (output,) = node.output[:1]
    values = (*graph.value_info, *graph.input, *graph.output)
    ndim = next(len(value.type.tensor_type.shape.dim) for value in values if value.name == node.input[0])
    shape = (-1, *[1] * (ndim - 2))
    names = []
    for name, array in (("scale", scale), ("shift", shift)):
        names.append(f"{output}_{name}")
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32).reshape(shape), names[-1]))
    scaled = f"{output}_scaled"
    place = list(graph.node).index(node)
    graph.node.remove(node)
    graph.node.insert(place, helper.make_node("Mul", [node.input[0], names[0]], [scaled], name=scaled))
    graph.node.insert(place + 1, helper.make_node("Add", [scaled, names[1]], [output], name=output))


def attributes_of(node):
    """Returns the attributes of a node as a dict."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def drop_unused(graph):
    """Removes initializers that no node takes, in place."""
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)
