"""ONNX models on the CPU, in onnxruntime."""

import onnxruntime

from mixprec.base.process_limits import number_of_threads


def session(model, *, qdq_in_float=False):
    """Makes a session that computes a model on the CPU.

    onnxruntime turns Q/DQ nodes around a layer into an integer kernel when it optimizes the graph. Without
    optimizations it follows the graph: values are rounded to 8 bits, and the layer between is FP32. So the result does
    not depend on the processor's integer instructions; models for another processor, or for TensorRT, are evaluated in
    this way.

    Args:
        model (onnx.ModelProto): less than 2 GB.
        qdq_in_float (bool): leave out the optimizations.

    Returns:
        onnxruntime.InferenceSession: with :func:`~mixprec.base.process_limits.number_of_threads` threads; it prints
        errors only.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = number_of_threads()
    if qdq_in_float:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
