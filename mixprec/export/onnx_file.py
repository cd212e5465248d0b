"""A Chainer model as an ONNX file in float32, and the same graph in float16."""

import copy
import re

import chainer
import numpy as np
import onnx
from onnx import helper, shape_inference, version_converter

from mixprec.base import VERSION, files
from mixprec.export.chainer_graph import plain_copy, separate, trace, variables
from mixprec.export.dynamic_batch import constants_to_initializers, make_dynamic, origin
from mixprec.export.export_error import ExportError
from mixprec.export.folding import drop_unused, fold_batch_normalizations, fold_moves
from mixprec.export.sessions import session as session_of

OPSET = 21
IR_VERSION = 10  # it came with opset 21: onnxruntime from 1.18, TensorRT from 10.2
_BATCHES = (2, 3)  # batch sizes of the traces
_COMPARED = (1, 2, 9)
_TOLERANCE = 1e-4  # of the largest output: a larger difference is a fault, not rounding


def export_onnx(model, example, path=None, *, inputs=("input",), outputs=("output",)):
    """Writes a model as an ONNX graph in float32, for inference: :func:`mixprec.export.onnx`.

    The graph is the graph of plain Chainer with ``chainer.config.train`` off, also for a converted model: images are
    (N, C, H, W) in float32. Weights are the float32 masters, if an optimizer has them. The first axis of all inputs is
    the batch, and can have any length; the other axes have the lengths of the example. Batch normalizations are folded
    into the convolutions before them.

    Args:
        model: any :class:`chainer.Link` that is called with ``example`` and returns variables, in tuples, lists or
            dicts; for a :class:`chainer.links.Classifier`, its predictor is exported. It stays as it is.
        example: an array, or a tuple of arrays, whose first axis is the batch; on any device. The model is called on
            random numbers between its smallest and its largest number.
        path: the file to write, ``None`` for none. It is written completely or not at all.
        inputs: names of the inputs; a single name becomes ``name_0``, ``name_1`` and so on for more than one array.
        outputs: names of the outputs, in the same way.

    Returns:
        onnx.ModelProto: opset 21, IR version 10, checked by ``onnx.checker`` with ``full_check``.

    Raises:
        TypeError: ``model`` is not a link.
        ExportError: a function cannot be exported (the message names it and its link), the model computes differently
            for other batch sizes, a parameter has no array yet, or the file would be larger than 2 GB.
        OSError: ``path`` cannot be written.

    Example:
        >>> import chainer.links as L
        >>> import numpy as np
        >>> import mixprec.export
        >>> model = mixprec.export.onnx(L.Linear(4, 2), np.zeros((1, 4), "float32"))
        >>> [node.op_type for node in model.graph.node]
        ['Gemm']
        >>> [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
        ['N', 4]
    """
    arrays = _arrays(example)
    plain = plain_copy(model)
    random = np.random.RandomState(0)
    traces = [trace(plain, _rows(arrays, batch, random)) for batch in _BATCHES]
    (first, origins), (second, _) = traces
    for each in (first, second):
        constants_to_initializers(each.graph)
        _initializers_only(each.graph)
        _check_inputs(each.graph, origins)
    make_dynamic((first.graph, second.graph), _BATCHES, origins)
    del second, traces
    _rename(first.graph, inputs, outputs)
    try:
        result = _of_opset(first)
        fold_moves(result.graph)
        fold_batch_normalizations(result.graph)
        result = finished(result)
    except (version_converter.ConvertError, shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        node = re.search(r"node name: (\w+?)(_tmp_\d+)?\)", str(error))
        where = f" at {origins.get(node[1], node[1])}" if node else ""
        raise ExportError(f"the graph of onnx_chainer is not valid{where}: {error}") from error
    _compare(result, plain, arrays)
    if path is not None:
        write(result, path)
    return result


def _arrays(example):
    found = []
    for index, array in enumerate(example if isinstance(example, tuple) else (example,)):
        if not isinstance(array, (chainer.Variable, *chainer.get_array_types())) or not array.ndim or not len(array):
            raise ExportError(
                f"input {index} of the example is {array!r:.60}; wanted: an array with a row for each image"
            )
        array = chainer.get_device("@numpy").send(chainer.as_array(array))
        if array.dtype.kind == "i" and array.min(initial=array.flat[0]) == array.max(initial=array.flat[0]):
            wanted = "wanted: different numbers, to show which results depend on them"
            raise ExportError(f"input {index} of the example holds one number only, {array.flat[0]}; {wanted}")
        found.append(array if array.dtype.kind in "iub" else array.astype(np.float32))
    return found


def _rows(arrays, batch, random):
    """Returns inputs of another batch size, of numbers between the smallest and the largest of the example.

    With the numbers of the example itself, a constant that the model has computed from them would look right.
    """
    rows = []
    for array in arrays:
        shape, low, high = (batch, *array.shape[1:]), array.min(), array.max()
        if array.dtype.kind == "b" or array.dtype == np.uint8:  # pixels
            drawn = random.randint(0, 2 if array.dtype.kind == "b" else 256, shape)
        elif array.dtype.kind in "iu":
            drawn = random.randint(low, int(high) + 1, shape)
        else:
            drawn = random.normal(low, 1, shape) if low == high else random.uniform(low, high, shape)
        rows.append(drawn.astype(array.dtype))
    return rows


def to_half(model):
    """Returns a model with float16 weights and activations, for TensorRT and other GPUs.

    On a CPU onnxruntime computes it in float32, between casts: it saves the size of the file, not time. Weights beyond
    65,504 become 65,504.

    Args:
        model: :class:`onnx.ModelProto` in float32, from :func:`mixprec.export.onnx`; it stays as it is.

    Returns:
        onnx.ModelProto: of the same inputs, outputs and metadata.
    """
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half = convert_float_to_float16(copy.deepcopy(model), keep_io_types=True, max_finite_val=65504.0)
    ONNXModel(half).topological_sort()  # the converter puts the casts of inputs last
    return finished(half)


def finished(model):
    """Returns a checked model whose inner shapes are inferred anew."""
    del model.graph.value_info[:]
    model = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    onnx.checker.check_model(model, full_check=True)
    return model


def write(model, path):
    """Writes a model to ``path``, completely or not at all."""
    with files.replacing(path) as temporary:
        onnx.save_model(model, temporary)


def _initializers_only(graph):
    """``onnx_chainer`` lists parameters among the inputs, too, which keeps runtimes from folding them."""
    constant = {tensor.name for tensor in graph.initializer}
    for value in [value for value in graph.input if value.name in constant]:
        graph.input.remove(value)
    needed = {value.name for value in graph.output}
    for node in reversed(list(graph.node)):  # parts of an array that is joined again need not be taken
        if needed.isdisjoint(node.output):
            graph.node.remove(node)
        needed.update(node.input if not needed.isdisjoint(node.output) else ())
    drop_unused(graph)


def _check_inputs(graph, origins):
    known = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise ExportError(f"{origin(node, origins)} takes an array that no function has made, such as x.array")
        known.update(node.output)


def _compare(result, plain, arrays):
    """Compares a graph with the model, on other numbers and other batches than it was traced with.

    A value that a model computes from ``x.array`` is a constant in the graph.
    """
    random = np.random.RandomState(1)
    names = [value.name for value in result.graph.input]
    session = None
    for batch in _COMPARED:
        rows = _rows(arrays, batch, random)
        try:
            with chainer.using_config("train", False), chainer.no_backprop_mode():  # with a state of its own
                expected = variables(separate(plain)(*map(chainer.Variable, rows)))
            session = session or session_of(result)
            found = session.run(None, dict(zip(names, rows, strict=True)))
        except Exception as error:  # onnxruntime has a class for each of a dozen reasons, all based on Exception
            what = f"{type(error).__name__}: {error}"
            raise ExportError(f"model or graph cannot be called on a batch of {batch}: {what}") from error
        if len(found) != len(expected):
            raise ExportError(
                f"the model returns {len(expected)} variables on {batch} rows, {len(found)} on {_BATCHES[0]}"
            )
        for value, array, variable in zip(result.graph.output, found, expected, strict=True):
            error = _difference(array, variable.array)
            if not error <= _TOLERANCE:
                why = "the model may read a number on the way, or ONNX may define a function differently"
                raise ExportError(
                    f"{value.name} of the graph differs from Chainer's by {error:.2g} of its size on a batch of "
                    f"{batch}: {why}"
                )


def _difference(found, wanted):
    """Returns the largest difference, relative to the largest finite expected number."""
    if found.shape != wanted.shape:
        return np.inf
    found, wanted = (np.asarray(array, np.float64) for array in (found, wanted))
    differ = (found != wanted) & ~(np.isnan(found) & np.isnan(wanted))
    size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-6)
    return np.abs(found - wanted)[differ].max(initial=0) / size


def _rename(graph, inputs, outputs):
    names = {}
    for values, wanted in ((graph.input, inputs), (graph.output, outputs)):
        if len(wanted) == 1 < len(values):
            wanted = [f"{wanted[0]}_{index}" for index in range(len(values))]
        if len(wanted) != len(values):
            raise ExportError(f"{len(wanted)} names for {len(values)} inputs or outputs: {', '.join(wanted)}")
        names.update({value.name: name for value, name in zip(values, wanted, strict=True)})
        for value in values:
            value.name = names[value.name]
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]


def _of_opset(model):
    """Returns a model of a newer opset, with the shapes of all values."""
    model.producer_name, model.producer_version = "mixprec", VERSION
    model.graph.name = "mixprec"
    weights = _take_weights(model.graph)  # ONNX's functions copy the whole model several times
    model = version_converter.convert_version(model, OPSET)
    model.ir_version = IR_VERSION
    model = shape_inference.infer_shapes(model, data_prop=True)
    for tensor in weights:
        model.graph.input.remove(next(value for value in model.graph.input if value.name == tensor.name))
        model.graph.initializer.append(tensor)
    return model


def _take_weights(graph):
    """Turns all floating-point initializers into inputs, and returns them."""
    weights = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT and tensor.dims]
    for tensor in weights:
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    taken = copy.deepcopy(weights)
    for tensor in weights:
        graph.initializer.remove(tensor)
    return taken
