"""``cupy.cudnn``'s switches, shared with all of mixprec: see :mod:`mixprec.backends.cudnn.settings`."""

import numpy as np

from mixprec.backends.cudnn import settings

_VOLTA = 70  # compute capability of the first GPU with Tensor cores


def get_max_workspace_size():
    """Returns the largest number of bytes of temporary memory for a convolution."""
    return settings.current().workspace


def set_max_workspace_size(size):
    """Sets the largest number of bytes of temporary memory for a convolution, as ``cudnn.workspace_mib`` does."""
    settings.configure(workspace=int(size))


def is_tensor_core_available(dtype):
    """Whether the current device has Tensor cores that compute with a dtype without rounding it."""
    import cupy

    return np.dtype(dtype) == np.float16 and int(cupy.cuda.Device().compute_capability) >= _VOLTA
