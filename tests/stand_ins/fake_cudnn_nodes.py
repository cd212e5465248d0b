"""The nodes of :mod:`tests.stand_ins.fake_cudnn`: names of arguments and results, dimensions, and formulas in float64.

Arrays are (N, C, H, W), filters (K, C / groups, R, S), what is per channel (1, C, 1, 1), whatever their strides.
There may be more axes in space.
"""

import math
from typing import NamedTuple

import numpy as np

_PER_CHANNEL = (0, 2, 3)


class Kind(NamedTuple):
    """A kind of node.

    Attributes:
        inputs: names of the tensors it takes.
        attributes: names of other arguments.
        outputs: names of its results, in the order in which the method returns them.
        shapes: function of (dimensions of inputs, attributes, dimensions that were set) to those of outputs.
        compute: function of (inputs, attributes, dimensions of outputs) to a tuple of results.
    """

    inputs: tuple
    attributes: tuple
    outputs: tuple
    shapes: object
    compute: object


def _padding(attributes):
    """Returns pairs of what comes before and after each axis in space."""
    return [(pad, pad) for pad in attributes["padding"]]


def _geometry(attributes):
    return _padding(attributes), attributes["stride"], attributes["dilation"]


def _out_size(image, weight, attributes):
    return tuple(
        (size + sum(pad) - (taps - 1) * dilation - 1) // stride + 1
        for size, taps, pad, stride, dilation in zip(image[2:], weight[2:], *_geometry(attributes), strict=True)
    )


def _check_channels(image, weight, loss):
    groups, rest = divmod(image[1], weight[1])
    if rest or weight[0] % groups or loss[:2] != [image[0], weight[0]]:
        raise RuntimeError(f"channels of image {image}, filter {weight} and output {loss} do not fit")


def _fprop_shapes(dims, attributes, _):
    image, weight = dims["image"], dims["weight"]
    y = [image[0], weight[0], *_out_size(image, weight, attributes)]
    _check_channels(image, weight, y)
    return [y]


def _gradient_shapes(image, weight, loss, attributes):
    if image is None or weight is None:
        raise RuntimeError("dimensions of the gradient have to be set: they do not follow from the inputs")
    _check_channels(image, weight, loss)
    if list(_out_size(image, weight, attributes)) != loss[2:]:
        raise RuntimeError(f"an image {image} and a filter {weight} do not give {loss}")


def _dgrad_shapes(dims, attributes, found):
    _gradient_shapes(found[0], dims["filter"], dims["loss"], attributes)
    return found


def _wgrad_shapes(dims, attributes, found):
    _gradient_shapes(dims["image"], found[0], dims["loss"], attributes)
    return found


def _padded(image, attributes):
    padding = _padding(attributes)
    if not any(map(any, padding)):
        return image
    size = [size + sum(pad) for size, pad in zip(image.shape[2:], padding, strict=True)]
    padded = np.zeros((*image.shape[:2], *size))
    inside = (slice(pad, pad + size) for (pad, _), size in zip(padding, image.shape[2:], strict=True))
    padded[(..., *inside)] = image
    return padded


def _windows(padded, filter_dim, out, attributes):
    """Returns what each element of a filter meets, as a view: (N, C, *taps, *out)."""
    _, stride, dilation = _geometry(attributes)
    whole, space = padded.strides[:2], padded.strides[2:]
    taps = [step * gap for step, gap in zip(space, dilation, strict=True)]
    moves = [step * move for step, move in zip(space, stride, strict=True)]
    shape = (*padded.shape[:2], *filter_dim[2:], *out)
    return np.lib.stride_tricks.as_strided(padded, shape, (*whole, *taps, *moves), writeable=False)


def _columns(image, filter_dim, out, attributes):
    """Returns an image as (N, groups, rows of a filter, places)."""
    windows = _windows(_padded(image, attributes), filter_dim, out, attributes)
    groups = image.shape[1] // filter_dim[1]
    return windows.reshape(len(image), groups, math.prod(filter_dim[1:]), math.prod(out))


def _fprop(inputs, attributes, dims):
    image, weight = inputs["image"], inputs["weight"]
    columns = _columns(image, weight.shape, dims[0][2:], attributes)
    groups, rows = columns.shape[1:3]
    return ((weight.reshape(groups, -1, rows) @ columns).reshape(dims[0]),)


def _dgrad(inputs, attributes, dims):
    loss, weight = inputs["loss"], inputs["filter"]
    groups = dims[0][1] // weight.shape[1]
    rows = weight.reshape(groups, -1, math.prod(weight.shape[1:])).swapaxes(1, 2)
    columns = rows @ loss.reshape(len(loss), groups, -1, math.prod(loss.shape[2:]))
    columns = columns.reshape(*dims[0][:2], *weight.shape[2:], *loss.shape[2:])
    padded = _padded(np.zeros(dims[0]), attributes)
    _, stride, dilation = _geometry(attributes)
    for tap in np.ndindex(*weight.shape[2:]):
        met = (
            slice(place * step, place * step + (size - 1) * move + 1, move)
            for place, step, size, move in zip(tap, dilation, loss.shape[2:], stride, strict=True)
        )
        padded[(slice(None), slice(None), *met)] += columns[(slice(None), slice(None), *tap)]
    kept = (slice(pad, pad + size) for (pad, _), size in zip(_padding(attributes), dims[0][2:], strict=True))
    return (padded[(..., *kept)],)


def _wgrad(inputs, attributes, dims):
    image, loss = inputs["image"], inputs["loss"]
    columns = _columns(image, dims[0], loss.shape[2:], attributes)
    dy = loss.reshape(len(loss), columns.shape[1], -1, columns.shape[3])
    return ((dy @ columns.swapaxes(2, 3)).sum(0).reshape(dims[0]),)


def _pointwise(*inputs, attributes=(), formula):
    def shapes(dims, _, found):
        return [list(np.broadcast_shapes(*(dims[name] for name in inputs)))]

    def compute(values, options, _):
        return (formula(*(values[name] for name in inputs), **options),)

    return Kind(inputs, attributes, ("OUT_0",), shapes, compute)


def _batchnorm(inputs, attributes, dims):
    x, momentum = inputs["input"], inputs["momentum"]
    count = x.size // x.shape[1]
    mean, variance = x.mean(_PER_CHANNEL, keepdims=True), x.var(_PER_CHANNEL, keepdims=True)
    invstd = 1 / np.sqrt(variance + inputs["epsilon"])
    moved = (
        (1 - momentum) * inputs["in_running_mean"] + momentum * mean,
        # cuDNN's documentation does not say so, but its older interface, of the same formula, gave the unbiased one.
        (1 - momentum) * inputs["in_running_var"] + momentum * variance * count / max(count - 1, 1),
    )
    return (inputs["scale"] * (x - mean) * invstd + inputs["bias"], mean, invstd, *moved)


def _batchnorm_backward(inputs, attributes, dims):
    x, dy, invstd = inputs["input"], inputs["grad"], inputs["inv_variance"]
    normalized = (x - inputs["mean"]) * invstd
    dscale = (dy * normalized).sum(_PER_CHANNEL, keepdims=True)
    dbias = dy.sum(_PER_CHANNEL, keepdims=True)
    count = x.size // x.shape[1]
    dx = inputs["scale"] * invstd * (dy - (dbias + normalized * dscale) / count)
    return dx, dscale, dbias


def _batchnorm_inference(input, mean, inv_variance, scale, bias):
    return scale * (input - mean) * inv_variance + bias


def _genstats(inputs, attributes, dims):
    x = inputs["input"]
    return x.sum(_PER_CHANNEL, keepdims=True), np.square(x).sum(_PER_CHANNEL, keepdims=True)


_CONVOLUTION = ("padding", "stride", "dilation")
_RUNNING = ("in_running_mean", "in_running_var", "epsilon", "momentum")
_STATISTICS = ("mean", "inv_variance")

NODES = {
    "conv_fprop": Kind(("image", "weight"), _CONVOLUTION, ("Y",), _fprop_shapes, _fprop),
    "conv_dgrad": Kind(("loss", "filter"), _CONVOLUTION, ("DX",), _dgrad_shapes, _dgrad),
    "conv_wgrad": Kind(("image", "loss"), _CONVOLUTION, ("DW",), _wgrad_shapes, _wgrad),
    "batchnorm": Kind(
        ("input", "scale", "bias", *_RUNNING),
        (),
        ("Y", "MEAN", "INV_VARIANCE", "NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR"),
        lambda dims, attributes, found: [dims["input"]] + [dims["scale"]] * 4,
        _batchnorm,
    ),
    "batchnorm_backward": Kind(
        ("grad", "input", "scale", *_STATISTICS),
        (),
        ("DX", "DSCALE", "DBIAS"),
        lambda dims, attributes, found: [dims["input"], dims["scale"], dims["scale"]],
        _batchnorm_backward,
    ),
    "genstats": Kind(
        ("input",), (), ("SUM", "SQ_SUM"), lambda dims, attributes, found: [[1, dims["input"][1], 1, 1]] * 2, _genstats
    ),
    "batchnorm_inference": _pointwise("input", *_STATISTICS, "scale", "bias", formula=_batchnorm_inference),
    "relu": _pointwise("input", formula=lambda x: np.maximum(x, 0)),
    "relu_backward": _pointwise("loss", "input", formula=lambda dy, x: np.where(x > 0, dy, 0)),
    "add": _pointwise("a", "b", formula=np.add),
    "scale": _pointwise("input", "scale", formula=np.multiply),
    "bias": _pointwise("input", "bias", formula=np.add),
    "cmp_gt": _pointwise("input", "comparison", formula=np.greater),
}
