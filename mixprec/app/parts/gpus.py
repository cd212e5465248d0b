"""The GPUs of this machine, and the choice of the device to compute on.

``chainer.backends.cuda.available`` only says that imports succeeded, which they do without a GPU; here the CUDA runtime
is asked. Nothing is imported until a function is called, and broken packages raise no exceptions.
"""

import contextlib
import glob
import importlib
import re
import warnings
from pathlib import Path

from mixprec.base.installation import cuda_hint
from mixprec.base.vocabulary import device

CUDA_HINT = cuda_hint()
NO_DRIVER = "no NVIDIA driver is installed"
_VENDORS, _NVIDIA = "/sys/bus/pci/devices/*/vendor", "0x10de"


def resolve_device(wanted, local_rank=0):
    """Finds the device to train on.

    Args:
        wanted (str): ``'auto'`` (a GPU if one works, else the CPU), ``'cpu'``, ``'gpu'`` or ``'gpu:N'``, or another
            name of these, see :func:`mixprec.base.vocabulary.device`.
        local_rank (int): Number of this process on this machine. For ``'auto'`` and ``'gpu'`` each process takes
            another GPU, in the order of these numbers; if there are more processes, they start again at GPU 0.

    Returns:
        tuple: ``(device, reason)``: a specifier for :func:`chainer.get_device` (``'@numpy'`` or
        ``'@cupy:N'``) and one line with the reason.

    Raises:
        ValueError: ``wanted`` is something else, or names a GPU that is not there.
    """
    known = device(wanted)
    match = re.fullmatch(r"auto|cpu|gpu(?::(\d+))?", known) if isinstance(known, str) else None
    if match is None:
        raise ValueError(f"device: found {wanted!r}, expected 'auto', 'cpu', 'gpu' or 'gpu:N'")
    wanted = known
    if wanted == "cpu":
        return "@numpy", "CPU, as asked for"
    count, reason = count_devices()
    if count:
        reason = _chainer_without_gpu()
        count = 0 if reason else count
    index = local_rank % max(count, 1) if match.group(1) is None else int(match.group(1))
    if index < count:
        return f"@cupy:{index}", f"GPU {index} of {count}: {device_name(index)}"
    if wanted == "auto":
        return "@numpy", f"CPU: {'there is no GPU' if is_without_gpu() else reason}"
    if count:
        reason = f"there are {count} GPUs, gpu:0 to gpu:{count - 1}" if count > 1 else "the only GPU is gpu:0"
    raise ValueError(f"device: found {wanted!r}, but {reason}; 'auto' or 'cpu' computes on the CPU")


def usable_device_count():
    """Number of GPUs that the CUDA runtime sees; 0 also where CuPy is missing or broken."""
    return count_devices()[0]


def address_of(device):
    """Returns the bus address of the GPU of a specifier ``'@cupy:N'``, which is unique on this machine."""
    cupy, _ = quietly_imported("cupy")
    return cupy.cuda.runtime.deviceGetPCIBusId(int(device.partition(":")[2]))


def is_without_gpu():
    """Whether this machine has no NVIDIA GPU at all, not even one that is hidden or lacks a driver."""
    presence, _ = quietly_imported("mixprec.compat.gpu_presence")
    if usable_device_count() or (presence and presence.gpu_is_there()):
        return False
    return not any(Path(path).read_text().strip() == _NVIDIA for path in glob.glob(_VENDORS))


def count_devices():
    """``(number of GPUs, reason why there is none)``, by the CUDA runtime."""
    cupy, error = quietly_imported("cupy")
    if cupy is None:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        return 0, f"CuPy is not installed, {CUDA_HINT}" if missing else f"CuPy is broken, {short(error)}"
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:
        with contextlib.suppress(Exception):
            if not int(cupy.cuda.runtime.driverGetVersion()):
                return 0, NO_DRIVER
        return 0, f"no GPU is usable, {short(error)}"
    return count, "" if count else "the CUDA runtime sees no GPU"


def device_name(index):
    """Name, compute capability and memory of a GPU, as far as the runtime tells."""
    cupy, _ = quietly_imported("cupy")
    try:
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        name = properties["name"]
        name = name.decode() if isinstance(name, bytes) else name
        memory = properties["totalGlobalMem"] / 2**30
        return f"{name}, compute capability {properties['major']}.{properties['minor']}, {memory:.0f} GiB"
    except Exception as error:
        return f"properties unknown, {short(error)}"


def quietly_imported(module):
    """Imports ``module`` without warnings; returns ``(module, None)`` or ``(None, error)``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(module), None
        except Exception as error:
            return None, error


def short(error):
    """The first line of an error's message, with its type."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _chainer_without_gpu():
    """Why Chainer cannot use the GPUs that there are; empty if it can."""
    cuda, error = quietly_imported("chainer.backends.cuda")
    if cuda is None:
        return f"Chainer is broken, {short(error)}"
    if not cuda.available:
        return f"Chainer cannot use CuPy, {short(cuda._resolution_error)}"
    return ""
