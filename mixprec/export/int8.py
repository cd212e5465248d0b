"""Quantizes a graph to INT8 after training, for TensorRT and for the CPU."""

import copy
import itertools
import pathlib

import numpy as np
import onnx
from onnx import shape_inference

from mixprec.base.messages import OneLineError
from mixprec.export.calibration import METHODS, Images, collect
from mixprec.export.placement import Graph, place
from mixprec.export.qdq import LARGEST_HALF, calibrated, insert
from mixprec.export.sessions import session

TARGETS = ("tensorrt", "cpu")
_SUFFIXES = ("_scale", "_zero_point", "_quantized", "_quantized_scale", "_quantized_zero_point")
_VNNI = {"avx512_vnni", "avx_vnni"}


def quantize(model, batches, *, target, half_ends=False, progress=None):
    """Makes an INT8 model of a float32 model: int8 weights, and Q/DQ nodes where activations are rounded to 8 bits.

    The ranges of the activations come from images. Three methods are tried. The chosen one gives the smallest mean
    squared difference of the outputs from the float32 model, in units of their variance, on held-out images, with Q/DQ
    nodes computed in float32 (:func:`mixprec.export.sessions.session`). Every fourth image is held out.

    - ``minmax``: the whole range; it is chosen if all are equal.
    - ``percentile``: 99.99 % of the absolute values.
    - ``entropy``: where a histogram of 2,048 bins loses least information in 128 levels
      (:func:`mixprec.export.calibration.entropy_threshold`).

    Weights have a scale for each output channel, max|w| / 127. :mod:`mixprec.export.placement` chooses the layers. The
    result is the same in each call.

    Args:
        model (onnx.ModelProto): float32, opset 13 or newer, with one input of a dynamic batch, and batch normalizations
            folded. It stays as it is.
        batches: an iterable of preprocessed images, float32 arrays ``(N, ...)``, or a function that returns one. It is
            iterated over three times, and must give the same images each time. They are computed one at a time.
        target (str): ``'tensorrt'``: activations int8 and symmetric, as TensorRT takes them; ``'cpu'``: activations
            uint8, for onnxruntime, and weights of 7 bits if this processor has no VNNI (:func:`has_vnni`).
        half_ends (bool): whether to leave the first and the last layer with weights unquantized. With ``'tensorrt'``
            they are float16, between casts, as TensorRT follows the types of the graph. On the CPU they stay float32;
            their inputs may be rounded for the layer before.
        progress: called with ``'ranges'``, ``'histograms'`` or ``'held out'`` and the number of images after each
            image.

    Returns:
        tuple: the quantized :class:`onnx.ModelProto`, and a dict that JSON can hold:

        - ``method``: the chosen method; ``errors``: the held-out error of each method.
        - ``calibration_images`` and ``held_out_images``: number of images.
        - ``quantized_layers``: number of layers with weights that are quantized; ``left_out``: names of the others.
        - ``reduce_range``: whether weights have 7 bits.

    Raises:
        OneLineError: there are fewer than eight images, a value is not finite or too large for float16, or no layer
            can be quantized.
        ValueError: ``target`` is unknown, or the model has more than one input.
    """
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, not {target!r}")
    if len(model.graph.input) != 1:
        raise ValueError(f"the model must have one input, not {len(model.graph.input)}")
    model = shape_inference.infer_shapes(_with_names(model), strict_mode=True, data_prop=True)
    graph = Graph(model.graph)
    placement = place(graph, target, half_ends)
    if not placement.layers:
        raise OneLineError("no layer of the model can be quantized")
    reduce_range = target == "cpu" and not has_vnni()
    progress = progress or (lambda step, done: None)
    images = Images(batches)
    statistics = collect(model, calibrated(graph, placement, target), images, progress)
    if target == "tensorrt":
        _check_halves(graph, placement.ends, statistics)
    candidates = {}
    for method in METHODS:
        ranges = {name: values.limits(method) for name, values in statistics.items()}
        candidates[method] = insert(model, placement, ranges, target, reduce_range)
    errors = _held_out_errors(model, candidates, images, progress)
    method = min(METHODS, key=errors.get)
    onnx.checker.check_model(candidates[method], full_check=True)
    return candidates[method], {
        "method": method,
        "errors": errors,
        "calibration_images": images.count - images.held_out_count,
        "held_out_images": images.held_out_count,
        "quantized_layers": len(placement.layers),
        "left_out": list(placement.left_out),
        "reduce_range": reduce_range,
    }


def has_vnni(path="/proc/cpuinfo"):
    """Whether this processor multiplies 8-bit integers and adds them up in 32 bits (VNNI).

    On others onnxruntime's kernels add pairs of products up in 16 bits, which saturates; weights of 7 bits do not.

    Args:
        path (path): Linux's list of the processors.
    """
    try:
        lines = pathlib.Path(path).read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("flags") and _VNNI & set(line.split()) for line in lines)


def _with_names(model):
    """A copy with names that the quantizer cannot confuse.

    It identifies nodes by name, and names the scale of ``x`` ``x_scale``, even if that name is in use.
    """
    result = copy.deepcopy(model)
    graph, nodes = result.graph, result.graph.node
    taken = {node.name for node in nodes}
    seen = {""}
    for node in nodes:
        if node.name in seen:
            node.name = _free(node.op_type, taken)
        seen.add(node.name)
    names = {tensor.name for tensor in graph.initializer}.union(*([*node.input, *node.output] for node in nodes))
    added = {f"{name}{suffix}" for name in names for suffix in _SUFFIXES}
    taken = names | added
    ours = {tensor.name: _free(tensor.name, taken) for tensor in graph.initializer if tensor.name in added}
    for tensor in graph.initializer:
        tensor.name = ours.get(tensor.name, tensor.name)
    for node in nodes:
        node.input[:] = [ours.get(name, name) for name in node.input]
    return result


def _free(name, taken):
    """Returns the first free name of name_0, name_1, ..., and reserves it."""
    found = next(each for each in (f"{name}_{number}" for number in itertools.count()) if each not in taken)
    taken.add(found)
    return found


def _check_halves(graph, names, statistics):
    """Checks that float16 can hold inputs and results of these layers. On the CPU they are computed in float32."""
    for node in graph.nodes:
        for name in (node.input[0], node.output[0]) if node.name in names else ():
            if statistics[name].largest > LARGEST_HALF:
                raise OneLineError(f"{name} is up to {statistics[name].largest:.3g}, too large for layers in float16")


def _held_out_errors(model, candidates, images, progress):
    """Mean squared differences between the outputs of each candidate and of the model, in units of their variance.

    With more than one output, this is the mean over the outputs.
    """
    source = model.graph.input[0].name
    exact = session(model)
    sessions = {method: session(candidate, qdq_in_float=True) for method, candidate in candidates.items()}
    outputs = range(len(model.graph.output))
    moments = np.zeros((len(outputs), 3))  # number, sum, sum of squares
    squares = {method: np.zeros(len(outputs)) for method in candidates}
    for done, image in enumerate(images.held_out(), start=1):
        wanted = [array.astype(np.float64) for array in exact.run(None, {source: image})]
        for index in outputs:
            moments[index] += wanted[index].size, wanted[index].sum(), np.square(wanted[index]).sum()
        for method, computer in sessions.items():
            found = computer.run(None, {source: image})
            squares[method] += [np.square(found[index] - wanted[index]).sum() for index in outputs]
        progress("held out", done)
    number, total, square = moments.T
    variance = square / number - (total / number) ** 2
    variance = np.maximum(variance, 1e-12 * square / number)  # the variance of a constant output is only rounding
    variance = np.where(variance > 0, variance, 1)
    return {method: float(np.mean(values / number / variance)) for method, values in squares.items()}
