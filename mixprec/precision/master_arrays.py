"""The FP32 array that belongs to an FP16 or BF16 parameter: an attribute of the parameter, shared by its optimizers.

``convert`` calls :func:`keep_master` for each parameter that it rounds, to keep the FP32 bits. The optimizer's masters
start from them at ``setup``, and :func:`written` runs in every step on NumPy.
"""

import numpy as np

from mixprec.base.dtypes import is_half

# Attribute of a parameter: the mixprec.optimizer.masters.Masters that owns it.
OWNER = "_mixprec_masters"

# Attribute of an FP16 or BF16 parameter: its id, which distinguishes it from copies, and its master's array.
MASTER = "_mixprec_master_array"


def master_of(param):
    """Returns the float32 array of the master of a parameter, or ``None`` if the master has no array of its own."""
    owner, array = param.__dict__.get(MASTER, (None, None))
    return array if owner == id(param) and is_half(param.dtype) and array.shape == param.shape else None


def keep_master(param):
    """Makes the float32 array of a parameter its master before it is rounded, if an optimizer has masters."""
    if OWNER in param.__dict__:
        param.__dict__[MASTER] = id(param), param.array


def written(rounded, master):
    """Returns a mask of the elements that were written since rounding: their bits differ from the rounded master's.

    Args:
        rounded: float16 or bfloat16 array of the parameter.
        master: float32 array of the same shape.
    """
    with np.errstate(over="ignore"):
        return rounded.view(np.int16) != master.astype(rounded.dtype).view(np.int16)
