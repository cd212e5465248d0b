"""A test for a GPU that does not initialize CUDA.

A process that has initialized CUDA cannot hand it to its forked children, and Chainer's
``MultiprocessParallelUpdater`` refuses to start in it. So ``import chainer`` must not initialize CUDA, and the CUDA
runtime cannot be asked.
"""

import ctypes
import glob
import os

_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu/*")  # desktop, WSL, Tegra, newer Tegra


def gpu_is_there():
    """Whether a GPU is there and not hidden by ``CUDA_VISIBLE_DEVICES``; it may still be unusable."""
    if _all_hidden():
        return False
    count = _count_of_nvml()
    return _driver_is_there() if count is None else count > 0


def _all_hidden():
    """Whether ``CUDA_VISIBLE_DEVICES`` begins with an invalid device, at which CUDA stops reading."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return first in ("", "NoDevFiles") or first.startswith("-")


def _count_of_nvml():
    """Number of GPUs that NVIDIA's management library sees; ``None`` if it is missing or fails.

    Containers may lack it: they get it with the driver capability ``utility``.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        init, count_of, shutdown = nvml.nvmlInit_v2, nvml.nvmlDeviceGetCount_v2, nvml.nvmlShutdown
    except (OSError, AttributeError):
        return None
    if init() != 0:
        return None
    count = ctypes.c_uint(0)
    failed = count_of(ctypes.byref(count)) != 0
    shutdown()
    return None if failed else count.value


def _driver_is_there():
    """Whether the driver's library can be opened, which initializes nothing, and there is a device file."""
    if not any(glob.glob(pattern) for pattern in _DEVICE_FILES):
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
