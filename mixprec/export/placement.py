"""Which layers and tensors of a graph are quantized, for TensorRT and for the CPU.

**TensorRT**, by NVIDIA's "Q/DQ Layer-Placement Recommendations" (TensorRT 11, Explicit Quantization) and the tool that
follows them, ModelOpt 0.47: all inputs of layers with weights are quantized, their outputs and biases are not, and of a
residual addition the shortcut only: TensorRT fuses the addition into the convolution of the other branch. ReLU, max
pooling and concatenation need no Q/DQ nodes of their own, since TensorRT moves the Q/DQ nodes of their neighbours past
them.

**CPU**: also the outputs, and the layers between: onnxruntime has an integer kernel for a layer between Q/DQ nodes.
"""

import dataclasses

import numpy as np
from onnx import TensorProto, numpy_helper

from mixprec.export.folding import attributes_of

PRODUCTS = ("Gemm", "MatMul")
LAYERS = ("Conv", "ConvTranspose", *PRODUCTS)
_RECTIFYING = ("Relu", "Clip")
_POOLING = ("AveragePool", "GlobalAveragePool")
# Integer kernels of onnxruntime, or operators that only move values. Not softmax and the like: 8 bits are too few for a
# probability.
_MOVING = ("MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
_BETWEEN = ("Add", "Concat", *_RECTIFYING, *_POOLING, *_MOVING)
_FEW_CHANNELS = 16


@dataclasses.dataclass(frozen=True)
class Placement:
    """The quantized parts of a graph.

    Attributes:
        layers (tuple of str): names of the nodes with weights that are quantized.
        nodes (tuple of str): names of all nodes that are quantized, these layers among them.
        tensors (tuple of str): names of tensors that are quantized beside the inputs (and for the CPU the outputs) of
            these nodes.
        ends (tuple of str): names of the first and the last layer, if they are left out on request.
        left_out (tuple of str): names of all layers that are not quantized.
    """

    layers: tuple
    nodes: tuple
    tensors: tuple
    ends: tuple
    left_out: tuple


class Graph:
    """A graph, with the producer and the consumers of each tensor.

    Args:
        graph (onnx.GraphProto): in topological order, with the types of all tensors; each node has a name of its own.

    Attributes:
        inputs (list of str): names of the graph's inputs.
        outputs (list of str): names of the graph's outputs.
        nodes (list of onnx.NodeProto): all nodes.
        initializers (dict): onnx.TensorProto by name.
        floats (set of str): names of float32 tensors that are not initializers.
        maker (dict): the node that produces a tensor, by name.
        takers (dict): list of the nodes that consume a tensor, by name.
    """

    def __init__(self, graph):
        self.inputs = [value.name for value in graph.input]
        self.outputs = [value.name for value in graph.output]
        self.nodes = list(graph.node)
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        values = (*graph.input, *graph.value_info, *graph.output)
        self.floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
        self.maker = {name: node for node in self.nodes for name in node.output}
        self.takers = {}
        for node in self.nodes:
            for name in filter(None, node.input):
                self.takers.setdefault(name, []).append(node)


def place(graph, target, half_ends):
    """Chooses the layers and tensors to quantize.

    Args:
        graph (Graph): the graph.
        target (str): ``'tensorrt'`` or ``'cpu'``.
        half_ends (bool): whether to leave out the first and the last layer.

    Returns:
        Placement
    """
    every = [node for node in graph.nodes if node.op_type in LAYERS]
    ends = {node.name: None for node in every[:1] + every[-1:]} if half_ends else {}
    layers = [
        node.name
        for node in every
        if node.name not in ends and _can_be_quantized(node, graph) and (target == "cpu" or _in_tensorrt(node, graph))
    ]
    left_out = tuple(node.name for node in every if node.name not in layers)
    if target == "tensorrt":
        return Placement(tuple(layers), tuple(layers), _beside(graph, layers), tuple(ends), left_out)
    return Placement(tuple(layers), _with_those_between(graph, layers), (), tuple(ends), left_out)


def _with_those_between(graph, layers):
    """The quantized layers, and the nodes that compute with their outputs on the CPU."""
    nodes = set(layers)
    for node in graph.nodes:
        follows = any(name in graph.maker and graph.maker[name].name in nodes for name in node.input)
        # Q replaces the ReLU before it; but outputs of the graph get no Q.
        inside = follows and not set(node.output) & set(graph.outputs)
        if inside and node.op_type in _BETWEEN and (node.op_type != "Clip" or _includes_zero(node, graph)):
            nodes.add(node.name)
    for node in reversed(graph.nodes):
        # Nor does a matrix product without consumers get a Q.
        rectifies = node.name in nodes and node.op_type in _RECTIFYING
        if rectifies and _rectified(node, graph).op_type in PRODUCTS and not _taken(node, nodes, graph):
            nodes.remove(node.name)
    return tuple(node.name for node in graph.nodes if node.name in nodes)


def _taken(node, nodes, graph):
    return any(taker.name in nodes for taker in graph.takers.get(node.output[0], ()))


def _rectified(node, graph):
    """The node whose output is rectified."""
    while node.op_type in _RECTIFYING:
        node = graph.maker[node.input[0]]
    return node


def _includes_zero(clip, graph):
    """Whether Q can replace it: the range of 8 bits always includes 0."""
    bounds = zip((*clip.input[1:], "", "")[:2], (np.less_equal, np.greater_equal), strict=True)
    constants = graph.initializers
    return all(
        not name or (name in constants and holds(numpy_helper.to_array(constants[name]), 0)) for name, holds in bounds
    )


def _can_be_quantized(node, graph):
    """Whether its weights are constants, of a form that onnxruntime.quantization handles correctly."""
    weights = [graph.initializers[name] for name in node.input[:2] if name in graph.initializers]
    if node.op_type == "MatMul":
        # Of a matrix the second axis has the output's channels.
        return not weights or (node.input[0] in graph.floats and len(weights[0].dims) == 2)
    if node.op_type == "Gemm":
        # It assumes that alpha and beta are 1.
        values = attributes_of(node)
        if values.get("alpha", 1) != 1 or values.get("beta", 1) != 1 or values.get("transA", 0):
            return False
    if node.op_type == "ConvTranspose" and attributes_of(node).get("group", 1) > 1:
        return False  # scales belong to the channels of a group, biases to all channels
    return node.input[0] in graph.floats and all(name in graph.initializers for name in node.input[1:])


def _in_tensorrt(node, graph):
    """Whether TensorRT has an INT8 kernel: find_nodes_from_convs_to_exclude of ModelOpt 0.47."""
    if node.op_type != "Conv":
        return True
    outputs, inputs, *kernel = graph.initializers[node.input[1]].dims
    if min(outputs, inputs) >= _FEW_CHANNELS:
        return True
    if attributes_of(node).get("group", 1) > 1:
        return outputs % 8 == 0 and min(kernel) >= 3
    first = node.input[0] in graph.inputs
    enough = first or max(outputs, inputs) >= _FEW_CHANNELS
    return enough and (outputs % 8 == 0 or inputs % 8 == 0) and len(set(kernel)) == 1


def _beside(graph, layers):
    """Inputs of average pooling, and shortcuts, in TensorRT."""
    depth = _depths(graph)
    tensors = {}
    for node in graph.nodes:
        if node.op_type in _POOLING:
            tensors[node.input[0]] = None
        elif node.op_type == "Add" and len(set(node.input) - graph.initializers.keys()) == 2:
            branches = sorted(node.input, key=lambda name: -depth.get(name, 0))
            fused = [name for name in branches if _ends_in_layer(name, graph, layers)]
            if fused:
                tensors.update({name: None for name in node.input if name != fused[0]})
    return tuple(tensors)


def _ends_in_layer(name, graph, layers):
    """Whether a quantized layer produces a tensor that has no other consumer."""
    alone = len(graph.takers[name]) == 1 and name not in graph.outputs
    return alone and name in graph.maker and graph.maker[name].name in layers


def _depths(graph):
    """Number of layers before each tensor, on the longest path."""
    depth = {}
    for node in graph.nodes:
        here = max((depth.get(name, 0) for name in node.input), default=0) + (node.op_type in LAYERS)
        depth.update(dict.fromkeys(node.output, here))
    return depth
