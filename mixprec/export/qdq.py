"""Inserts Q/DQ nodes into a graph: QuantizeLinear and DequantizeLinear, which round a tensor to 8 bits."""

import collections
import copy

import numpy as np
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import TensorData
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import add_infer_metadata

from mixprec.export.folding import drop_unused
from mixprec.export.placement import PRODUCTS

LARGEST_HALF = float(np.finfo(np.float16).max)


def insert(model, placement, ranges, target, reduce_range):
    """Returns a copy of a model with Q/DQ nodes.

    Weights are int8, with a scale for each output channel and zero points 0, and a DequantizeLinear node before the
    layer. For TensorRT activations are int8 too, symmetric, and biases stay float32: its parser refuses other zero
    points, uint8, and a DequantizeLinear node of int32. For the CPU activations are uint8, with a zero point, and
    biases int32. Outputs of the graph are not rounded, nor is a matrix product that no quantized node takes.

    Args:
        model (onnx.ModelProto): float32, with the types of all tensors in ``value_info``; each node has a name of its
            own.
        placement (mixprec.export.placement.Placement): what is quantized.
        ranges (dict): lowest and highest value, by the names of :func:`calibrated`.
        target (str): ``'tensorrt'`` or ``'cpu'``.
        reduce_range (bool): whether weights have 7 bits.

    Returns:
        onnx.ModelProto: opset, IR version, metadata and the names of inputs and outputs as in ``model``.
    """
    result = copy.deepcopy(model)
    _own_constants(result.graph, placement.left_out)
    add_infer_metadata(result)  # otherwise the quantizer writes files to infer the types again
    types = sorted({node.op_type for node in model.graph.node if node.name in placement.nodes})
    symmetric = target == "tensorrt"
    quantizer = QDQQuantizer(
        result,
        per_channel=True,
        reduce_range=reduce_range,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QInt8 if symmetric else QuantType.QUInt8,
        tensors_range={
            name: TensorData(lowest=np.float32(lowest), highest=np.float32(highest))
            for name, (lowest, highest) in ranges.items()
        },
        nodes_to_quantize=list(placement.nodes),
        nodes_to_exclude=[],
        op_types_to_quantize=types,
        extra_options={
            "ActivationSymmetric": symmetric,
            "QuantizeBias": not symmetric,
            "QDQDisableWeightAdjustForInt32Bias": symmetric,
            "OpTypesToExcludeOutputQuantization": types if symmetric else [],
        },
    )
    for name in placement.tensors:
        quantizer.quantize_activation_tensor(name)
    quantizer.quantize_model()
    for node in list(result.graph.node):
        if node.op_type == "DequantizeLinear":
            _leave_floats(result.graph, node, placement, target)
    if symmetric:
        _to_half(result.graph, placement.ends)
    return _finished(result, model)


def _own_constants(graph, names):
    """Gives each layer its own constants: the quantizer replaces a constant for all of its consumers."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    takers = collections.Counter(name for node in graph.node for name in node.input)
    for node in graph.node:
        for index, name in enumerate(node.input):
            if node.name in names and name in tensors and takers[name] > 1:
                graph.initializer.add().CopyFrom(tensors[name])
                graph.initializer[-1].name = node.input[index] = f"{name}_of_{node.name}"


def calibrated(graph, placement, target):
    """Returns the names of the tensors whose ranges :func:`insert` needs, including float16 results of the ends.

    Args:
        graph (mixprec.export.placement.Graph): graph of the model.
        placement (mixprec.export.placement.Placement): what is quantized.
        target (str): ``'tensorrt'`` or ``'cpu'``.
    """
    names = dict.fromkeys(placement.tensors)
    for node in graph.nodes:
        if node.name in placement.nodes:
            names.update(dict.fromkeys(node.input))
        if node.name in (placement.nodes if target == "cpu" else placement.ends):
            names.update(dict.fromkeys((node.input[0], *node.output)))
    return [name for name in names if name in graph.floats]


def _leave_floats(graph, dequantize, placement, target):
    """Connects outputs of the graph, and left-out layers where it is free, to the values before Q/DQ.

    On the CPU a quantized layer needs the Q node after it to become an integer kernel, and that Q node may replace a
    ReLU. Only a matrix product can have an output in float32.
    """
    makers = {name: node for node in graph.node for name in node.output}
    quantize = makers.get(dequantize.input[0])
    if quantize is None:  # of weights
        return
    source, rounded = quantize.input[0], dequantize.output[0]
    maker = makers.get(source)
    if rounded in {value.name for value in graph.output}:
        # The quantizer has renamed the tensor before Q: it gets its name back.
        old, source, rounded = source, rounded, f"{rounded}_DequantizeLinear_Output"
        _rename(graph.node, source, rounded)
        maker.output[list(maker.output).index(old)] = source
        quantize.input[0], dequantize.output[0] = source, rounded
    takers = [node for node in graph.node if rounded in node.input]
    if target == "tensorrt" or maker is None or maker.name not in placement.nodes:
        exact = [node for node in takers if node.name in placement.left_out]
    elif maker.op_type in PRODUCTS and not any(node.name in placement.nodes for node in takers):
        exact = takers
    else:
        exact = []
    _rename(exact, rounded, source)
    if len(exact) == len(takers):
        graph.node.remove(quantize)
        graph.node.remove(dequantize)


def _rename(nodes, old, new):
    """Replaces an input of nodes by another tensor."""
    for node in nodes:
        node.input[:] = [new if name == old else name for name in node.input]


def _to_half(graph, names):
    """Makes layers compute in float16, between casts."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        for index, name in enumerate(node.input):
            node.input[index] = half = f"{name}_{node.name}_float16"
            if name in tensors:
                array = np.clip(numpy_helper.to_array(tensors[name]), -LARGEST_HALF, LARGEST_HALF)
                graph.initializer.append(numpy_helper.from_array(array.astype(np.float16), half))
            else:
                nodes.append(helper.make_node("Cast", [name], [half], name=half, to=TensorProto.FLOAT16))
        output = node.output[0]
        node.output[0] = half = f"{output}_float16"
        nodes += [node, helper.make_node("Cast", [half], [output], name=half, to=TensorProto.FLOAT)]
    del graph.node[:]
    graph.node.extend(nodes)


def _finished(result, model):
    """The result in topological order, without unused parts, and with the metadata of the model."""
    graph = result.graph
    drop_unused(graph)
    ONNXModel(result).topological_sort()
    for field in ("metadata_props", "opset_import"):
        result.ClearField(field)
        getattr(result, field).extend(getattr(model, field))
    result.producer_name, result.producer_version = model.producer_name, model.producer_version
    del graph.value_info[:]
    return shape_inference.infer_shapes(result, strict_mode=True)
