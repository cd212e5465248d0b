"""``cupy.cudnn``'s descriptors: plain values that say what cuDNN 7's would have held.

cuDNN 9's graphs have no descriptors; these are for programs that make and look at them. There is nothing to destroy.
"""

import dataclasses
import itertools

from mixprec.bridge import constants

_values = itertools.count(1)
_DATA_TYPES = {
    "float16": constants.CUDNN_DATA_HALF,
    "float32": constants.CUDNN_DATA_FLOAT,
    "float64": constants.CUDNN_DATA_DOUBLE,
    "bfloat16": constants.CUDNN_DATA_BFLOAT16,
}


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """The description of a tensor or a filter.

    Attributes:
        kind: ``"tensor"`` or ``"filter"``.
        fields: its values, by name.
        value: a number that no other descriptor has, in place of the address that CuPy's had.
    """

    kind: str
    fields: dict
    value: int = dataclasses.field(default_factory=lambda: next(_values))


def get_data_type(dtype):
    """Returns the number of a dtype in cudnn.h.

    Raises:
        TypeError: cuDNN has no such type.
    """
    name = getattr(dtype, "name", None) or str(dtype)
    if name not in _DATA_TYPES:
        raise TypeError(f"dtype: found {name}, expected one of {', '.join(_DATA_TYPES)}")
    return _DATA_TYPES[name]


def create_tensor_descriptor(arr, format=constants.CUDNN_TENSOR_NCHW):
    """Describes an array."""
    return _of_array("tensor", arr, format=format)


def create_tensor_nd_descriptor(arr):
    """Describes an array with its strides."""
    return _of_array("tensor", arr, strides=arr.strides)


def create_filter_descriptor(arr, format=constants.CUDNN_TENSOR_NCHW):
    """Describes an array of filters."""
    return _of_array("filter", arr, format=format)


def _of_array(kind, arr, **how):
    if not arr.flags.c_contiguous and "strides" not in how:
        raise ValueError(f"arr: found strides {arr.strides} for shape {arr.shape}, expected a C-contiguous array")
    return Descriptor(kind, {"shape": tuple(arr.shape), "data_type": get_data_type(arr.dtype), **how})
