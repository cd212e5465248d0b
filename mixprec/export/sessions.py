"""ONNX models on the CPU, in onnxruntime."""

import onnxruntime

from mixprec.base.process_limits import number_of_threads


def session(model, *, qdq_in_float=False):
    """Makes a session that computes a model on the CPU.

    onnxruntime turns Q/DQ nodes around a layer into a kernel of integers when it optimizes the graph. Without
    optimizations it computes what the graph says: the values are rounded to 8 bits, and the layer between is FP32. So
    the result does not depend on the processor's integer instructions, which is how a model for another processor, or
    for TensorRT, is judged.

    Args:
        model (onnx.ModelProto): less than 2 GB.
        qdq_in_float (bool): leave out the optimizations.

    Returns:
        onnxruntime.InferenceSession: with as many threads as
        :func:`~mixprec.base.process_limits.number_of_threads` says; it prints errors only.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = number_of_threads()
    if qdq_in_float:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
