"""Converters of functions of Chainer to ONNX that ``onnx_chainer`` lacks, or that leave something out there.

They are of the kind that ``onnx_chainer.export`` takes as ``external_converters``: from the function and the names of
its inputs and outputs to nodes of ONNX, opset 11.
"""

import numpy as np


def all_of_them():
    """Returns the converters of all functions: a dict by the name of the function's class."""
    from onnx_chainer import mapping

    return {**mapping.converters, **_OURS}


def name_of_function():
    """Returns the name that ``onnx_chainer`` gives the function that is converted now: its nodes' names begin so."""
    from onnx_chainer import onnx_helper

    return onnx_helper.get_func_name()


def _nodes():
    """Returns a builder of nodes; the last one gets the outputs of the function."""
    from onnx_chainer import onnx_helper

    return onnx_helper.GraphBuilder()


def _constant(parameters, name, values, dtype=np.int64):
    return parameters.context.add_const(np.array(values, dtype), name)


def _convolution_nd(parameters):
    """``onnx_chainer`` leaves out ``dilate``."""
    function, nodes = parameters.func, _nodes()
    nodes.op(
        "Conv",
        parameters.input_names,
        kernel_shape=function.inputs[1].shape[2:],
        dilations=function.dilate,
        pads=[*function.pad, *function.pad],
        strides=function.stride,
        group=function.groups,
    )
    return nodes.nodes(parameters.output_names)


def _deconvolution_2d(parameters):
    function = parameters.func
    return _deconvolution(
        parameters,
        (function.sy, function.sx),
        (function.ph, function.pw),
        (function.dy, function.dx),
        (function.outh, function.outw),
    )


def _deconvolution_nd(parameters):
    function = parameters.func
    return _deconvolution(parameters, function.stride, function.pad, function.dilate, function.outs)


def _deconvolution(parameters, stride, pad, dilate, outs):
    """``onnx_chainer`` leaves out ``dilate``, and has ONNX choose the side where an odd padding is larger."""
    images, filters = parameters.func.inputs[:2]
    ends, more = [], []
    for size, kernel, s, p, d, out in zip(images.shape[2:], filters.shape[2:], stride, pad, dilate, outs, strict=True):
        end = s * (size - 1) + d * (kernel - 1) + 1 - p - out
        ends.append(max(end, 0))
        more.append(max(-end, 0))
    nodes = _nodes()
    nodes.op(
        "ConvTranspose",
        parameters.input_names,
        kernel_shape=filters.shape[2:],
        dilations=dilate,
        pads=[*pad, *ends],
        output_padding=more,
        strides=stride,
        group=parameters.func.groups,
    )
    return nodes.nodes(parameters.output_names)


def _lstm(parameters):
    """The gates a, i, f, o of Chainer lie next to each other for each unit: (N, 4 * units)."""
    cell, gates = parameters.input_names
    units = parameters.func.inputs[0].shape[1]
    if parameters.func.inputs[0].shape != (parameters.func.inputs[1].shape[0], units):
        raise ValueError("the state has other rows than the input, or more than two axes")
    nodes = _nodes()
    shape = _constant(parameters, "shape", [-1, units, 4])
    parts = nodes.op("Split", [nodes.op("Reshape", [gates, shape])], num_outputs=4, axis=2)
    a, i, f, o = (nodes.op("Squeeze", [part], axes=[2]) for part in parts)
    new = nodes.op("Mul", [nodes.op("Tanh", [a]), nodes.op("Sigmoid", [i])])
    kept = nodes.op("Mul", [nodes.op("Sigmoid", [f]), cell])
    next_cell, output = parameters.output_names
    nodes.op_output_named("Add", [new, kept], [next_cell])
    nodes.op_output_named("Mul", [nodes.op("Sigmoid", [o]), nodes.op("Tanh", [next_cell])], [output])
    return nodes.nodes()


def _pooling(operator):
    """Windows that lie over the end of an image (``cover_all``) need more padding there.

    ``onnx_chainer`` has ONNX round up for them, which leaves out windows that begin behind the image, and it does not
    know a ``pad_value`` of ``None``.
    """

    def convert(parameters):
        function, nodes = parameters.func, _nodes()
        if hasattr(function, "ksize"):
            window, stride, pad = function.ksize, function.stride, function.pad
        else:
            window, stride, pad = (function.kh, function.kw), (function.sy, function.sx), (function.ph, function.pw)
        ends = []
        sizes, outs = function.inputs[0].shape[2:], function.outputs[0]().shape[2:]
        for size, k, s, p, out in zip(sizes, window, stride, pad, outs, strict=True):
            ends.append(max((out - 1) * s + k - size - p, 0))
            if ends[-1] >= k:
                raise ValueError("its last window lies beyond the image; cover_all=False leaves it out")
        attributes = {"kernel_shape": window, "strides": stride, "pads": [*pad, *ends]}
        if operator == "AveragePool":
            attributes["count_include_pad"] = int(getattr(function, "pad_value", 0) is not None)
        nodes.op(operator, parameters.input_names, **attributes)
        return nodes.nodes(parameters.output_names)

    return convert


def _batch_normalization(parameters):
    """One of other axes than (N, C, ...), whose statistics have a shape that ONNX's operator does not take."""
    from onnx_chainer import mapping

    function = parameters.func
    x = function.inputs[0]
    if tuple(function.axis) == (0, *range(2, len(x.shape))):
        return mapping.converters["FixedBatchNormalization"](parameters)
    shape = [1 if axis in function.axis else size for axis, size in enumerate(x.shape)]
    nodes, name = _nodes(), parameters.input_names[0]
    of_statistics = _constant(parameters, "shape", shape)
    gamma, beta, mean, var = (nodes.op("Reshape", [each, of_statistics]) for each in parameters.input_names[1:])
    eps = _constant(parameters, "eps", function.eps, np.float32)
    scale = nodes.op("Div", [gamma, nodes.op("Sqrt", [nodes.op("Add", [var, eps])])])
    nodes.op("Add", [nodes.op("Mul", [nodes.op("Sub", [name, mean]), scale]), beta])
    return nodes.nodes(parameters.output_names)


def _statistics_of_the_batch(parameters):
    raise ValueError("it normalizes by the statistics of the batch; F.fixed_batch_normalization has those of training")


def _local_response_normalization(parameters):
    from onnx_chainer import mapping

    if parameters.func.n % 2 == 0:
        raise ValueError("n is even, for which ONNX takes other channels")
    return mapping.converters["LocalResponseNormalization"](parameters)


def _normalize(parameters):
    """``onnx_chainer`` leaves out eps."""
    function, nodes = parameters.func, _nodes()
    (x,) = parameters.input_names
    eps = _constant(parameters, "eps", function.eps, np.float32)
    norm = nodes.op("ReduceL2", [x], axes=list(function.axis), keepdims=1)
    nodes.op("Div", [x, nodes.op("Add", [norm, eps])])
    return nodes.nodes(parameters.output_names)


def _layer_normalization(parameters):
    """Over the second axis, the last of the two that Chainer allows."""
    x, gamma, beta = parameters.input_names
    nodes = _nodes()
    eps = _constant(parameters, "eps", parameters.func.eps, np.float32)
    centred = nodes.op("Sub", [x, nodes.op("ReduceMean", [x], axes=[1], keepdims=1)])
    variance = nodes.op("ReduceMean", [nodes.op("Mul", [centred, centred])], axes=[1], keepdims=1)
    normalized = nodes.op("Div", [centred, nodes.op("Sqrt", [nodes.op("Add", [variance, eps])])])
    nodes.op("Add", [nodes.op("Mul", [normalized, gamma]), beta])
    return nodes.nodes(parameters.output_names)


def _of_channels(parameters, nodes):
    """The name of the second input, a parameter of the axes behind the first, which ONNX aligns at the last axis."""
    x, parameter = parameters.func.inputs[:2]
    shape = [1, *parameter.shape, *[1] * (len(x.shape) - 1 - len(parameter.shape))]
    return nodes.op("Reshape", [parameters.input_names[1], _constant(parameters, "shape", shape)])


def _prelu(parameters):
    nodes = _nodes()
    nodes.op("PRelu", [parameters.input_names[0], _of_channels(parameters, nodes)])
    return nodes.nodes(parameters.output_names)


def _swish(parameters):
    x, nodes = parameters.input_names[0], _nodes()
    nodes.op("Mul", [x, nodes.op("Sigmoid", [nodes.op("Mul", [x, _of_channels(parameters, nodes)])])])
    return nodes.nodes(parameters.output_names)


def _crelu(parameters):
    (x,) = parameters.input_names
    nodes = _nodes()
    both = [nodes.op("Relu", [x]), nodes.op("Relu", [nodes.op("Neg", [x])])]
    nodes.op("Concat", both, axis=parameters.func.axis)
    return nodes.nodes(parameters.output_names)


def _resize_images(parameters):
    """``onnx_chainer`` leaves out ``align_corners`` and ``mode``."""
    function, nodes = parameters.func, _nodes()
    sizes = [*function.inputs[0].shape[:2], function.out_H, function.out_W]
    nothing = [_constant(parameters, name, [], np.float32) for name in ("roi", "scales")]
    if function.mode == "nearest":
        way = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        corners = "align_corners" if function.align_corners else "half_pixel"
        way = {"mode": "linear", "coordinate_transformation_mode": corners}
    nodes.op("Resize", [*parameters.input_names, *nothing, _constant(parameters, "sizes", sizes)], **way)
    return nodes.nodes(parameters.output_names)


def _unpooling_2d(parameters):
    """Each pixel becomes a window; ``cover_all``, the default, leaves out the last row and column of windows."""
    function, nodes = parameters.func, _nodes()
    window = (function.kh, function.kw)
    if window != (function.sy, function.sx) or (function.ph, function.pw) != (0, 0):
        raise ValueError("windows overlap, or there is padding")
    outs = (function.outh, function.outw)
    if any(out > k * size for out, k, size in zip(outs, window, function.inputs[0].shape[2:], strict=True)):
        raise ValueError("outsize is larger than all windows together")
    roi = _constant(parameters, "roi", [], np.float32)
    scales = _constant(parameters, "scales", [1, 1, *window], np.float32)
    way = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    larger = nodes.op("Resize", [*parameters.input_names, roi, scales], **way)
    limits = {"starts": [0, 0], "ends": outs, "axes": [2, 3]}
    nodes.op("Slice", [larger, *(_constant(parameters, *limit) for limit in limits.items())])
    return nodes.nodes(parameters.output_names)


def _pad(parameters):
    """``onnx_chainer`` takes whole numbers only, and pads the batch, too."""
    function, nodes = parameters.func, _nodes()
    ndim = len(function.inputs[0].shape)
    widths = np.broadcast_to(function.pad_bw, (ndim, 2))
    if widths[0].any():
        raise ValueError("it pads the axis of the batch")
    if function.mode not in ("constant", "reflect", "edge"):
        raise ValueError(f"ONNX has no mode {function.mode!r}")
    value = np.array(function.keywords.get("constant_values", 0), np.float32)
    if value.size != 1:
        raise ValueError("ONNX pads with one number")
    names = [*parameters.input_names, _constant(parameters, "pads", widths.T.reshape(-1))]
    if function.mode == "constant":
        names.append(_constant(parameters, "value", value.item(), np.float32))
    nodes.op("Pad", names, mode=function.mode)
    return nodes.nodes(parameters.output_names)


def _tile(parameters):
    """``onnx_chainer`` does not know that missing numbers are ones in front."""
    function, nodes = parameters.func, _nodes()
    reps = function.reps if isinstance(function.reps, (tuple, list)) else [function.reps]
    missing = len(function.inputs[0].shape) - len(reps)
    if missing < 0:
        raise ValueError("it makes an axis more than its input has")
    nodes.op("Tile", [*parameters.input_names, _constant(parameters, "reps", [*[1] * missing, *reps])])
    return nodes.nodes(parameters.output_names)


def _transpose(parameters):
    """``onnx_chainer`` leaves negative axes as they are, which ONNX does not know."""
    nodes, ndim = _nodes(), len(parameters.func.inputs[0].shape)
    axes = parameters.func.axes
    axes = range(ndim)[::-1] if axes is None else [axis % ndim for axis in axes]
    nodes.op("Transpose", parameters.input_names, perm=list(axes))
    return nodes.nodes(parameters.output_names)


def _softplus(parameters):
    """``onnx_chainer`` leaves out beta."""
    nodes = _nodes()
    beta = _constant(parameters, "beta", parameters.func.beta, np.float32)
    nodes.op("Div", [nodes.op("Softplus", [nodes.op("Mul", [*parameters.input_names, beta])]), beta])
    return nodes.nodes(parameters.output_names)


def _flip(parameters):
    nodes = _nodes()
    first, last, step = ([value] for value in (-1, np.iinfo(np.int64).min, -1))
    limits = {"starts": first, "ends": last, "axes": [parameters.func.axis], "steps": step}
    nodes.op("Slice", [*parameters.input_names, *(_constant(parameters, *limit) for limit in limits.items())])
    return nodes.nodes(parameters.output_names)


def _cumsum(parameters):
    function, nodes = parameters.func, _nodes()
    if function.axis is None:
        raise ValueError("it is over all axes")
    nodes.op("CumSum", [*parameters.input_names, _constant(parameters, "axis", function.axis)])
    return nodes.nodes(parameters.output_names)


def _broadcast(parameters):
    nodes = _nodes()
    common = np.broadcast_shapes(*(each.shape for each in parameters.func.inputs))
    shape = _constant(parameters, "shape", common)
    for name, output in zip(parameters.input_names, parameters.output_names, strict=True):
        nodes.op_output_named("Expand", [name, shape], [output])
    return nodes.nodes()


def _one(operator):
    """A converter to one node that has the same inputs."""

    def convert(parameters):
        nodes = _nodes()
        nodes.op(operator, parameters.input_names)
        return nodes.nodes(parameters.output_names)

    return convert


_OURS = {
    "AveragePooling2D": _pooling("AveragePool"),
    "AveragePoolingND": _pooling("AveragePool"),
    "BatchNormalization": _statistics_of_the_batch,
    "Broadcast": _broadcast,
    "CReLU": _crelu,
    "ConvolutionND": _convolution_nd,
    "Cumsum": _cumsum,
    "Deconvolution2DFunction": _deconvolution_2d,
    "DeconvolutionND": _deconvolution_nd,
    "Erf": _one("Erf"),
    "FixedBatchNormalization": _batch_normalization,
    "Flip": _flip,
    "LSTM": _lstm,
    "LayerNormalization": _layer_normalization,
    "LocalResponseNormalization": _local_response_normalization,
    "MaxPooling2D": _pooling("MaxPool"),
    "MaxPoolingND": _pooling("MaxPool"),
    "MultiAdd": _one("Sum"),
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
