"""The report of ``python -m mixprec`` on this machine, and the choice of the device to train on.

``chainer.backends.cuda.available`` only says that imports succeeded, which they do without a GPU; here the
CUDA runtime is asked. Nothing heavy is imported until a function is called, and nothing that is broken
raises.
"""

import dataclasses
import importlib
import platform
import re
import site
import sys
import sysconfig
import warnings
from importlib import metadata
from pathlib import Path

from mixprec.base import variables
from mixprec.base.installation import cuda_hint, in_checkout, install_hint
from mixprec.base.text_table import aligned

_CHAINER_HINT = 'pip install "setuptools<81" wheel && pip install --no-build-isolation chainer==7.8.1'
_CUDA_HINT = cuda_hint()
_DALI_HINT = install_hint("dali")
_MPI_HINT = install_hint("mpi")
_EXPORT_HINT = install_hint("export")


@dataclasses.dataclass(frozen=True)
class Component:
    """One line of the report.

    Attributes:
        name (str): What it is, e.g. ``'CuPy'``.
        state (str): ``'ok'``, ``'missing'`` (not there) or ``'broken'`` (there, and unusable).
        version (str): Version or short description, empty if there is none.
        note (str): Why it is missing or broken and how to get it, or what to know about it.
    """

    name: str
    state: str
    version: str = ""
    note: str = ""


def usable_device_count():
    """Number of GPUs that the CUDA runtime sees; 0 also where CuPy is missing or broken."""
    return _count_devices()[0]


def resolve_device(wanted, local_rank=0):
    """Finds the device to train on.

    Args:
        wanted (str): ``'auto'`` (a GPU if one works, else the CPU), ``'cpu'``, ``'gpu'`` or ``'gpu:N'``.
        local_rank (int): Of several processes on this machine each takes another GPU, for ``'auto'`` and ``'gpu'``: as
            many as there are take the first ones in the order of this number, and then it begins anew.

    Returns:
        tuple: ``(device, reason)``: a specifier for :func:`chainer.get_device` (``'@numpy'`` or
        ``'@cupy:N'``) and one line for humans that says why.

    Raises:
        ValueError: ``wanted`` is something else, or names a GPU that is not there.
    """
    match = re.fullmatch(r"auto|cpu|gpu(?::(\d+))?", wanted) if isinstance(wanted, str) else None
    if match is None:
        raise ValueError(f"device: found {wanted!r}, expected 'auto', 'cpu', 'gpu' or 'gpu:N'")
    if wanted == "cpu":
        return "@numpy", "CPU, as asked for"
    count, reason = _count_devices()
    if count:
        reason = _chainer_without_gpu()
        count = 0 if reason else count
    index = local_rank % max(count, 1) if match.group(1) is None else int(match.group(1))
    if index < count:
        return f"@cupy:{index}", f"GPU {index} of {count}: {_device_name(index)}"
    if wanted == "auto":
        return "@numpy", f"CPU: {reason}"
    if count:
        reason = f"there are {count} GPUs, gpu:0 to gpu:{count - 1}" if count > 1 else "the only GPU is gpu:0"
    raise ValueError(f"device: found {wanted!r}, but {reason}; 'auto' or 'cpu' would train on the CPU")


def address_of(device):
    """Returns what tells the GPU of a specifier ``'@cupy:N'`` from others of this machine: its address on the bus."""
    cupy, _ = _import("cupy")
    return cupy.cuda.runtime.deviceGetPCIBusId(int(device.partition(":")[2]))


def cpu():
    """Returns the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def components():
    """Looks at everything that mixprec can use.

    Returns:
        list of Component: in the order of the report.
    """
    return [
        Component("Python", "ok", platform.python_version(), sys.executable),
        _package("NumPy", "numpy"),
        _package("Chainer", "chainer", _CHAINER_HINT),
        _startup_hook(),
        *_variables(),
        _native_library(),
        _package("CuPy", "cupy", _CUDA_HINT),
        *_cuda(),
        _cudnn(),
        _package("cuDNN frontend", "cudnn", _CUDA_HINT, ("nvidia-cudnn-frontend",)),
        _chainers_cudnn(),
        _nccl(),
        _package("mpi4py", "mpi4py", _MPI_HINT),
        _package("DALI", "nvidia.dali", _DALI_HINT, ("nvidia-dali-cuda130", "nvidia-dali-cuda120")),
        _package("Pillow", "PIL.Image", "pip install Pillow", ("Pillow",)),
        _package("matplotlib", "matplotlib", "pip install matplotlib"),
        _package("ONNX", "onnx", _EXPORT_HINT),
    ]


def report():
    """The environment as aligned text, one component a line, the device that ``'auto'`` means last."""
    device, reason = resolve_device("auto")
    rows = [*components(), Component("device 'auto'", "ok", device, reason)]
    cells = [(row.name, row.state, row.version, row.note) for row in rows]
    return "\n".join(aligned(cells))


def _import(module):
    """Imports ``module`` without warnings; returns ``(module, None)`` or ``(None, error)``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(module), None
        except Exception as error:
            return None, error


def _one_line(error):
    """The first line of what ``error`` says, with its type."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _package(name, module, hint="", distributions=()):
    """A Python package: imported, and its version read from itself or from its distributions."""
    imported, error = _import(module)
    if imported is None:
        root = module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name in (root, module):
            return Component(name, "missing", note=hint)
        return Component(name, "broken", _distribution_version(distributions), _one_line(error))
    version = getattr(imported, "__version__", None) or _distribution_version(distributions)
    return Component(name, "ok", str(version))


def _distribution_version(distributions):
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _startup_hook():
    """Whether every interpreter of this environment, also a worker's, can import Chainer."""
    folders = {sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages(), *sys.path}
    if any(Path(folder, "mixprec_startup.pth").is_file() for folder in folders):
        return Component("start-up hook", "ok", note="worker processes can import Chainer")
    install = "pip install -e ." if in_checkout() else "pip install --force-reinstall --no-deps mixprec"
    note = f"workers started by spawn or forkserver may fail: {install}"
    return Component("start-up hook", "missing", note=note)


def _variables():
    """The environment variables of mixprec that are set."""
    said = variables.described()
    try:
        variables.check()
    except variables.VariableError as error:
        return [Component("variables", "broken", note=str(error))]
    return [Component("variables", "ok", note="; ".join(said))] if said else []


def _native_library():
    """The library that computes on the CPU: its instruction set and threads, or why NumPy computes in its place."""
    try:
        module, reason = importlib.import_module("mixprec.native.native_library").load()
    except Exception as error:
        return Component("native library", "broken", note=_one_line(error))
    if module is None:
        return Component("native library", "missing", note=reason)
    return Component("native library", "ok", module.instructions(), f"threads: {module.threads()}")


def _count_devices():
    """``(number of GPUs, reason why there is none)``, by the CUDA runtime."""
    cupy, error = _import("cupy")
    if cupy is None:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        return 0, f"CuPy is not installed, {_CUDA_HINT}" if missing else f"CuPy is broken, {_one_line(error)}"
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:
        if _cuda_version("", lambda: cupy.cuda.runtime.driverGetVersion()).state == "missing":
            return 0, "no NVIDIA driver is installed"
        return 0, f"no GPU is usable, {_one_line(error)}"
    return count, "" if count else "the CUDA runtime sees no GPU"


def _chainer_without_gpu():
    """Why Chainer cannot use the GPUs that there are; empty if it can."""
    cuda, error = _import("chainer.backends.cuda")
    if cuda is None:
        return f"Chainer is broken, {_one_line(error)}"
    if not cuda.available:
        return f"Chainer cannot use CuPy, {_one_line(cuda._resolution_error)}"
    return ""


def _device_name(index):
    """Name, compute capability and memory of a GPU, as far as the runtime tells."""
    cupy, _ = _import("cupy")
    try:
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        name = properties["name"]
        name = name.decode() if isinstance(name, bytes) else name
        memory = properties["totalGlobalMem"] / 2**30
        return f"{name}, compute capability {properties['major']}.{properties['minor']}, {memory:.0f} GiB"
    except Exception as error:
        return f"properties unknown, {_one_line(error)}"


def _cuda():
    """CUDA runtime, driver and GPUs, through CuPy."""
    cupy, _ = _import("cupy")
    if cupy is None:
        return [Component(name, "missing", note="needs CuPy") for name in ("CUDA runtime", "CUDA driver", "GPU")]
    rows = [
        _cuda_version("CUDA runtime", lambda: cupy.cuda.runtime.runtimeGetVersion()),
        _cuda_version("CUDA driver", lambda: cupy.cuda.runtime.driverGetVersion()),
    ]
    count, reason = _count_devices()
    if not count:
        return [*rows, Component("GPU", "missing", note=reason)]
    return [*rows, *(Component(f"GPU {index}", "ok", note=_device_name(index)) for index in range(count))]


def _cuda_version(name, ask):
    """A version that CUDA gives as 1000 * major + 10 * minor, 0 for none."""
    try:
        version = int(ask())
    except Exception as error:
        return Component(name, "broken", note=_one_line(error))
    if not version:
        return Component(name, "missing", note="no NVIDIA driver is installed")
    return Component(name, "ok", f"{version // 1000}.{version % 1000 // 10}")


def _cudnn():
    """The cuDNN library, as the frontend loads it."""
    version = _distribution_version(("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"))
    frontend, _ = _import("cudnn")
    if frontend is None:
        if version:
            return Component("cuDNN", "ok", version, "installed, and unused without the cuDNN frontend")
        return Component("cuDNN", "missing", note=_CUDA_HINT)
    try:
        loaded = int(frontend.backend_version())
    except Exception as error:
        return Component("cuDNN", "broken", version, _one_line(error))
    return Component("cuDNN", "ok", f"{loaded // 10000}.{loaded % 10000 // 100}.{loaded % 100}")


def _chainers_cudnn():
    """Whether plain Chainer has a cuDNN: its own branches for it are taken, and its convolutions are no im2col."""
    name = "Chainer's cuDNN"
    cuda, _ = _import("chainer.backends.cuda")
    if cuda is None:
        return Component(name, "missing", note="needs Chainer")
    from mixprec.bridge import placing

    if cuda.cudnn_enabled:
        return Component(name, "ok", note="by mixprec's bridge to cuDNN 9" if placing.is_bridged() else "CuPy's own")
    if getattr(cuda, "_cudnn_disabled_by_user", False):
        return Component(name, "missing", note="off: CHAINER_CUDNN=0")
    why = placing.why_not() or placing.what_is_missing() or "Chainer was imported before mixprec's start-up hook"
    return Component(name, "missing", note=f"off: {why}")


def _nccl():
    """NCCL, by which several GPUs exchange gradients, as CuPy loads it."""
    version = _distribution_version(("nvidia-nccl-cu13", "nvidia-nccl-cu12"))
    cupy, _ = _import("cupy")
    if cupy is None and version:
        return Component("NCCL", "ok", version, "installed, and unused without CuPy")
    try:
        loaded = int(_import("cupy.cuda.nccl")[0].get_version())
    except Exception:  # CuPy's module is empty if it finds no library
        if version:
            return Component("NCCL", "broken", version, "CuPy cannot load it")
        return Component("NCCL", "missing", note=f"for several GPUs: {_CUDA_HINT}")
    return Component("NCCL", "ok", f"{loaded // 10000}.{loaded % 10000 // 100}.{loaded % 100}")
