"""The frontend of cuDNN 9 and its names for dtypes.

It is loaded below, by :mod:`mixprec.cudnn_library`: Chainer asks for cuDNN while it is being imported, and this
package imports Chainer.
"""

from mixprec.cudnn_library import CudnnMissing, load

__all__ = ["CudnnMissing", "data_type", "load"]

_DATA_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "boolean": "BOOLEAN"}


def data_type(cudnn, name):
    """Returns a dtype of :class:`~mixprec.backends.cudnn.operation.Tensor` as cuDNN's."""
    return getattr(cudnn.data_type, _DATA_TYPES[name])
