"""``cupy.cudnn``'s switches, which are those of all of mixprec: see :mod:`mixprec.backends.cudnn.settings`."""

import numpy as np

from mixprec.backends.cudnn import settings

_VOLTA = 70  # compute capability of the first GPU with Tensor cores


def get_max_workspace_size():
    """Returns how many bytes of temporary memory a convolution may need."""
    return settings.current().workspace


def set_max_workspace_size(size):
    """Sets how many bytes of temporary memory a convolution may need, as ``cudnn.workspace_mib`` of a config does."""
    settings.configure(workspace=int(size))


def is_tensor_core_available(dtype):
    """Whether the current device has Tensor cores that compute with a dtype without rounding it."""
    import cupy

    return np.dtype(dtype) == np.float16 and int(cupy.cuda.Device().compute_capability) >= _VOLTA
