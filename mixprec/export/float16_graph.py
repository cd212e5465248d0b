"""An ONNX graph in float16, whose inputs and outputs stay float32."""

import copy

from mixprec.export.onnx_file import finished


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
