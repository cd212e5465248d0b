"""The part of ``onnx.mapping`` that ``onnx_chainer`` needs, on versions of ONNX that no longer have it."""

import importlib.util
import types

from mixprec.compat.hooks import before_import
from mixprec.compat.registry import LEAVE

_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_STORED_AS_NUMBERS = ("float32", "int32", "int64")  # other constants keep their bytes, which is correct as well


@before_import("onnx_chainer", target="onnx.mapping")
def onnx_mapping(original):
    """Without it ``onnx_chainer.export`` says that ONNX is not installed: ``onnx.mapping`` is gone from onnx 1.19."""
    try:
        from onnx import helper
    except ImportError:
        return LEAVE
    return _mapping(helper) if importlib.util.find_spec("onnx.mapping") is None else LEAVE


def _mapping(helper):
    import numpy as np

    kinds = {dtype: helper.np_dtype_to_tensor_dtype(dtype) for dtype in map(np.dtype, _DTYPES)}
    stub = types.ModuleType("onnx.mapping", "The part that onnx_chainer uses, by mixprec.compat.")
    stub.NP_TYPE_TO_TENSOR_TYPE = kinds
    stub.STORAGE_TENSOR_TYPE_TO_FIELD = {
        kinds[np.dtype(name)]: helper.tensor_dtype_to_field(kinds[np.dtype(name)]) for name in _STORED_AS_NUMBERS
    }
    return stub
