"""Converters of Chainer's functions to ONNX that ``onnx_chainer`` lacks, or that are incomplete there.

``onnx_chainer.export`` takes them as ``external_converters``: from the function and the names of its inputs and outputs
they make nodes of ONNX, opset 11.
"""

import numpy as np
from onnx_chainer import mapping, onnx_helper

from mixprec.export.sequence_links import n_step_link, whole_of


def all_of_them():
    """Returns the converters of all functions: a dict by the name of the function's class."""
    return {**mapping.converters, **_CONVERTERS, **{name: _converter(build) for name, build in _BUILDERS.items()}}


def name_of_function():
    """Returns ``onnx_chainer``'s name of the function that is being converted: names of its nodes begin with it."""
    return onnx_helper.get_func_name()


class _Nodes(onnx_helper.GraphBuilder):
    """The nodes of a function: the last one gets its output; of several outputs each is named where it is made.

    Attributes:
        function: of Chainer.
        inputs: names of its inputs.
        outputs: names of its outputs.
    """

    def __init__(self, parameters):
        super().__init__()
        self.function, self.inputs, self.outputs = parameters.func, parameters.input_names, parameters.output_names
        self._context = parameters.context

    def constant(self, name, values, dtype=np.int64):
        """Returns the name of a constant."""
        return self._context.add_const(np.array(values, dtype), name)

    def slice(self, name, **limits):
        """Adds a node that takes a part of a value."""
        self.op("Slice", [name, *(self.constant(*limit) for limit in limits.items())])


def _converter(build):
    """Returns the converter made from a function that adds to :class:`_Nodes`."""

    def convert(parameters):
        nodes = _Nodes(parameters)
        build(nodes)
        return nodes.nodes(nodes.outputs if len(nodes.outputs) == 1 else None)

    return convert


_OF_TWO_AXES = {"ksize": "kh kw", "stride": "sy sx", "pad": "ph pw", "dilate": "dy dx", "outs": "outh outw"}


def _of_axes(function, *names):
    """Returns a function's arguments for each axis of an image as a list of tuples, also if it has two axes only."""
    if hasattr(function, names[0]):
        return [getattr(function, name) for name in names]
    return [tuple(getattr(function, each) for each in _OF_TWO_AXES[name].split()) for name in names]


def _convolution_nd(nodes):
    """``onnx_chainer`` leaves out ``dilate``."""
    function = nodes.function
    nodes.op(
        "Conv",
        nodes.inputs,
        kernel_shape=function.inputs[1].shape[2:],
        dilations=function.dilate,
        pads=[*function.pad, *function.pad],
        strides=function.stride,
        group=function.groups,
    )


def _deconvolution(nodes):
    """``onnx_chainer`` leaves out ``dilate``, and lets ONNX choose the side where an odd padding is larger."""
    images, filters = nodes.function.inputs[:2]
    stride, pad, dilate, outs = _of_axes(nodes.function, "stride", "pad", "dilate", "outs")
    ends, more = [], []
    for size, kernel, s, p, d, out in zip(images.shape[2:], filters.shape[2:], stride, pad, dilate, outs, strict=True):
        end = s * (size - 1) + d * (kernel - 1) + 1 - p - out
        ends.append(max(end, 0))
        more.append(max(-end, 0))
    nodes.op(
        "ConvTranspose",
        nodes.inputs,
        kernel_shape=filters.shape[2:],
        dilations=dilate,
        pads=[*pad, *ends],
        output_padding=more,
        strides=stride,
        group=nodes.function.groups,
    )


def _lstm(nodes):
    """The gates a, i, f, o of Chainer lie next to each other for each unit: (N, 4 * units)."""
    cell, gates = nodes.inputs
    units = nodes.function.inputs[0].shape[1]
    if nodes.function.inputs[0].shape != (nodes.function.inputs[1].shape[0], units):
        raise ValueError("the state and the input differ in their number of rows, or it has more than two axes")
    shape = nodes.constant("shape", [-1, units, 4])
    parts = nodes.op("Split", [nodes.op("Reshape", [gates, shape])], num_outputs=4, axis=2)
    a, i, f, o = (nodes.op("Squeeze", [part], axes=[2]) for part in parts)
    new = nodes.op("Mul", [nodes.op("Tanh", [a]), nodes.op("Sigmoid", [i])])
    kept = nodes.op("Mul", [nodes.op("Sigmoid", [f]), cell])
    next_cell, output = nodes.outputs
    nodes.op_output_named("Add", [new, kept], [next_cell])
    nodes.op_output_named("Mul", [nodes.op("Sigmoid", [o]), nodes.op("Tanh", [next_cell])], [output])


def _pooling(operator):
    """Windows that lie over the end of an image (``cover_all``) need more padding there.

    ``onnx_chainer`` lets ONNX round up for them, which leaves out windows that begin after the image, and it does not
    support a ``pad_value`` of ``None``.
    """

    def build(nodes):
        function = nodes.function
        window, stride, pad = _of_axes(function, "ksize", "stride", "pad")
        ends = []
        sizes, outs = function.inputs[0].shape[2:], function.outputs[0]().shape[2:]
        for size, k, s, p, out in zip(sizes, window, stride, pad, outs, strict=True):
            ends.append(max((out - 1) * s + k - size - p, 0))
            if ends[-1] >= k:
                raise ValueError("its last window lies beyond the image; cover_all=False leaves it out")
        attributes = {"kernel_shape": window, "strides": stride, "pads": [*pad, *ends]}
        if operator == "AveragePool":
            attributes["count_include_pad"] = int(getattr(function, "pad_value", 0) is not None)
        nodes.op(operator, nodes.inputs, **attributes)

    return build


def _batch_normalization(parameters):
    function = parameters.func
    if tuple(function.axis) == (0, *range(2, len(function.inputs[0].shape))):
        return mapping.converters["FixedBatchNormalization"](parameters)
    return _converter(_batch_normalization_of_other_axes)(parameters)


def _batch_normalization_of_other_axes(nodes):
    """For shapes other than (N, C, ...), whose statistics ONNX's operator does not accept."""
    function, name = nodes.function, nodes.inputs[0]
    shape = [1 if axis in function.axis else size for axis, size in enumerate(function.inputs[0].shape)]
    of_statistics = nodes.constant("shape", shape)
    gamma, beta, mean, var = (nodes.op("Reshape", [each, of_statistics]) for each in nodes.inputs[1:])
    eps = nodes.constant("eps", function.eps, np.float32)
    scale = nodes.op("Div", [gamma, nodes.op("Sqrt", [nodes.op("Add", [var, eps])])])
    nodes.op("Add", [nodes.op("Mul", [nodes.op("Sub", [name, mean]), scale]), beta])


def _statistics_of_the_batch(parameters):
    raise ValueError("it normalizes by the statistics of the batch; use F.fixed_batch_normalization")


def _local_response_normalization(parameters):
    if parameters.func.n % 2 == 0:
        raise ValueError("n is even, for which ONNX takes other channels")
    return mapping.converters["LocalResponseNormalization"](parameters)


def _normalize(nodes):
    """``onnx_chainer`` leaves out eps."""
    function = nodes.function
    (x,) = nodes.inputs
    eps = nodes.constant("eps", function.eps, np.float32)
    norm = nodes.op("ReduceL2", [x], axes=list(function.axis), keepdims=1)
    nodes.op("Div", [x, nodes.op("Add", [norm, eps])])


def _layer_normalization(nodes):
    """Over the second axis, the last of the two that Chainer allows."""
    x, gamma, beta = nodes.inputs
    eps = nodes.constant("eps", nodes.function.eps, np.float32)
    centred = nodes.op("Sub", [x, nodes.op("ReduceMean", [x], axes=[1], keepdims=1)])
    variance = nodes.op("ReduceMean", [nodes.op("Mul", [centred, centred])], axes=[1], keepdims=1)
    normalized = nodes.op("Div", [centred, nodes.op("Sqrt", [nodes.op("Add", [variance, eps])])])
    nodes.op("Add", [nodes.op("Mul", [normalized, gamma]), beta])


def _of_channels(nodes):
    """The name of the second input, a parameter of the axes after the first, which ONNX aligns at the last axis."""
    x, parameter = nodes.function.inputs[:2]
    shape = [1, *parameter.shape, *[1] * (len(x.shape) - 1 - len(parameter.shape))]
    return nodes.op("Reshape", [nodes.inputs[1], nodes.constant("shape", shape)])


def _prelu(nodes):
    nodes.op("PRelu", [nodes.inputs[0], _of_channels(nodes)])


def _swish(nodes):
    x = nodes.inputs[0]
    nodes.op("Mul", [x, nodes.op("Sigmoid", [nodes.op("Mul", [x, _of_channels(nodes)])])])


def _crelu(nodes):
    (x,) = nodes.inputs
    both = [nodes.op("Relu", [x]), nodes.op("Relu", [nodes.op("Neg", [x])])]
    nodes.op("Concat", both, axis=nodes.function.axis)


_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _resize_images(nodes):
    """``onnx_chainer`` leaves out ``align_corners`` and ``mode``."""
    function = nodes.function
    sizes = [*function.inputs[0].shape[:2], function.out_H, function.out_W]
    nothing = [nodes.constant(name, [], np.float32) for name in ("roi", "scales")]
    if function.mode == "nearest":
        way = _NEAREST
    else:
        corners = "align_corners" if function.align_corners else "half_pixel"
        way = {"mode": "linear", "coordinate_transformation_mode": corners}
    nodes.op("Resize", [*nodes.inputs, *nothing, nodes.constant("sizes", sizes)], **way)


def _unpooling_2d(nodes):
    """Each pixel becomes a window; ``cover_all``, the default, leaves out the last row and column of windows."""
    function = nodes.function
    window, stride, pad, outs = _of_axes(function, "ksize", "stride", "pad", "outs")
    if window != stride or pad != (0, 0):
        raise ValueError("windows overlap, or there is padding")
    if any(out > k * size for out, k, size in zip(outs, window, function.inputs[0].shape[2:], strict=True)):
        raise ValueError("outsize is larger than all windows together")
    roi = nodes.constant("roi", [], np.float32)
    scales = nodes.constant("scales", [1, 1, *window], np.float32)
    larger = nodes.op("Resize", [*nodes.inputs, roi, scales], **_NEAREST)
    nodes.slice(larger, starts=[0, 0], ends=outs, axes=[2, 3])


def _pad(nodes):
    """``onnx_chainer`` takes whole numbers only, and pads the batch, too."""
    function = nodes.function
    ndim = len(function.inputs[0].shape)
    widths = np.broadcast_to(function.pad_bw, (ndim, 2))
    if widths[0].any():
        raise ValueError("it pads the axis of the batch")
    if function.mode not in ("constant", "reflect", "edge"):
        raise ValueError(f"ONNX has no mode {function.mode!r}")
    value = np.array(function.keywords.get("constant_values", 0), np.float32)
    if value.size != 1:
        raise ValueError("ONNX pads with one number")
    names = [*nodes.inputs, nodes.constant("pads", widths.T.reshape(-1))]
    if function.mode == "constant":
        names.append(nodes.constant("value", value.item(), np.float32))
    nodes.op("Pad", names, mode=function.mode)


def _tile(nodes):
    """``onnx_chainer`` does not treat missing leading numbers as ones."""
    function = nodes.function
    reps = function.reps if isinstance(function.reps, (tuple, list)) else [function.reps]
    missing = len(function.inputs[0].shape) - len(reps)
    if missing < 0:
        raise ValueError("it adds an axis")
    nodes.op("Tile", [*nodes.inputs, nodes.constant("reps", [*[1] * missing, *reps])])


def _transpose(nodes):
    """``onnx_chainer`` leaves negative axes as they are, which ONNX does not support."""
    axes, ndim = nodes.function.axes, len(nodes.function.inputs[0].shape)
    axes = range(ndim)[::-1] if axes is None else [axis % ndim for axis in axes]
    nodes.op("Transpose", nodes.inputs, perm=list(axes))


def _softplus(nodes):
    """``onnx_chainer`` leaves out beta."""
    beta = nodes.constant("beta", nodes.function.beta, np.float32)
    nodes.op("Div", [nodes.op("Softplus", [nodes.op("Mul", [*nodes.inputs, beta])]), beta])


def _flip(nodes):
    first, last, step = ([value] for value in (-1, np.iinfo(np.int64).min, -1))
    nodes.slice(*nodes.inputs, starts=first, ends=last, axes=[nodes.function.axis], steps=step)


def _cumsum(nodes):
    function = nodes.function
    if function.axis is None:
        raise ValueError("it is over all axes")
    nodes.op("CumSum", [*nodes.inputs, nodes.constant("axis", function.axis)])


def _broadcast(nodes):
    common = np.broadcast_shapes(*(each.shape for each in nodes.function.inputs))
    shape = nodes.constant("shape", common)
    for name, output in zip(nodes.inputs, nodes.outputs, strict=True):
        nodes.op_output_named("Expand", [name, shape], [output])


def _joining(parameters):
    """What joins all parts of an array along the first axis is a Reshape of it."""
    function, nodes = parameters.func, _Nodes(parameters)
    whole = whole_of(function.inputs) if function.axis == 0 else None
    if whole is None:
        return mapping.converters[type(function).__name__](parameters)
    shape = nodes.constant("shape", function.outputs[0]().shape)
    nodes.op("Reshape", [parameters.context.get_name(whole.get_variable()), shape])
    return nodes.nodes(nodes.outputs)


def _one(operator):
    """Converts to one node with the same inputs."""
    return lambda nodes: nodes.op(operator, nodes.inputs)


_CONVERTERS = {
    "BatchNormalization": _statistics_of_the_batch,
    "Concat": _joining,
    "FixedBatchNormalization": _batch_normalization,
    "LocalResponseNormalization": _local_response_normalization,
    "Stack": _joining,
}
_BUILDERS = {
    "AveragePooling2D": _pooling("AveragePool"),
    "AveragePoolingND": _pooling("AveragePool"),
    "Broadcast": _broadcast,
    "CReLU": _crelu,
    "ConvolutionND": _convolution_nd,
    "Cumsum": _cumsum,
    "Deconvolution2DFunction": _deconvolution,
    "DeconvolutionND": _deconvolution,
    "Erf": _one("Erf"),
    "Flip": _flip,
    "LSTM": _lstm,
    "LayerNormalization": _layer_normalization,
    "MaxPooling2D": _pooling("MaxPool"),
    "MaxPoolingND": _pooling("MaxPool"),
    "MultiAdd": _one("Sum"),
    "NStepLink": n_step_link,
    "NormalizeL2": _normalize,
    "PReLUFunction": _prelu,
    "Pad": _pad,
    "ResizeImages": _resize_images,
    "Softplus": _softplus,
    "Swish": _swish,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unpooling2D": _unpooling_2d,
}
