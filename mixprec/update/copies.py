"""The rounded copies of FP32 masters that a model computes with."""

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES = (np.dtype(np.float16), BFLOAT16)

# Attribute of a parameter: the mixprec.optimizer.masters.Masters it belongs to.
OWNER = "_mixprec_masters"

# Attribute of a parameter that is a copy: its id, which tells copies of the parameter apart, and its master's array.
MASTER = "_mixprec_master_array"


def master_of(param):
    """Returns the float32 array of the master of a parameter, or ``None`` if it has none of its own."""
    owner, array = param.__dict__.get(MASTER, (None, None))
    return array if owner == id(param) and is_copy(param.dtype) and array.shape == param.shape else None


def keep_master(param):
    """Makes the float32 array of a parameter its master, if an optimizer has masters: it is going to be rounded."""
    if OWNER in param.__dict__:
        param.__dict__[MASTER] = id(param), param.array


def is_copy(dtype):
    """Whether a parameter in this dtype is the copy of an FP32 master: float16 and bfloat16, but no wider one."""
    return dtype in _DTYPES


def written(copy, master):
    """Returns which elements of a copy somebody has written: their bits are not those of the rounded master.

    Args:
        copy: array in one of the dtypes of copies.
        master: float32 array of the same shape.
    """
    with np.errstate(over="ignore"):
        return copy.view(np.int16) != master.astype(copy.dtype).view(np.int16)
