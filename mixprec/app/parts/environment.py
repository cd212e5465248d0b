"""The report of ``mixprec info`` on this machine, which is also in the ``environment.txt`` of a run.

Nothing heavy is imported until a function is called, and broken packages raise no exceptions.
"""

import dataclasses
import importlib
import platform
import site
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from mixprec.app.parts import gpus
from mixprec.base import VERSION, variables
from mixprec.base.installation import in_checkout, install_hint
from mixprec.base.text_table import aligned

_CHAINER_HINT = 'pip install "setuptools<81" wheel && pip install --no-build-isolation chainer==7.8.1'
_DALI_HINT = install_hint("dali")
_MPI_HINT = install_hint("mpi")
_EXPORT_HINT = install_hint("export")


@dataclasses.dataclass(frozen=True)
class Component:
    """One line of the report.

    Attributes:
        name (str): Its name, for example ``'CuPy'``.
        state (str): ``'ok'``, ``'missing'``, ``'broken'`` (installed, but unusable), or ``'not needed'`` (missing, and
            useful only on a machine with a GPU).
        version (str): Version or short description, empty if there is none.
        note (str): Why it is missing or broken and how to get it, or a remark.
    """

    name: str
    state: str
    version: str = ""
    note: str = ""


def cpu():
    """Returns the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def components():
    """Checks everything that mixprec can use.

    Returns:
        list of Component: components in the order of the report.
    """
    gpu_parts = [
        _package("CuPy", "cupy", gpus.CUDA_HINT),
        *_cuda(),
        _cudnn(),
        _package("cuDNN frontend", "cudnn", gpus.CUDA_HINT, ("nvidia-cudnn-frontend",)),
        _chainers_cudnn(),
        _nccl(),
    ]
    device = gpus.resolve_device("auto")
    if gpus.is_without_gpu():
        gpu_parts = [_not_needed(row) if row.state == "missing" else row for row in gpu_parts]
    return [
        Component("mixprec", "ok", VERSION, str(Path(__file__).parents[2])),
        Component("Python", "ok", platform.python_version(), sys.executable),
        _package("NumPy", "numpy"),
        _package("Chainer", "chainer", _CHAINER_HINT),
        _startup_hook(),
        *_variables(),
        _native_library(),
        *gpu_parts,
        _package("mpi4py", "mpi4py", _MPI_HINT),
        _package("DALI", "nvidia.dali", _DALI_HINT, ("nvidia-dali-cuda130", "nvidia-dali-cuda120")),
        _package("Pillow", "PIL.Image", "pip install Pillow", ("Pillow",)),
        _package("matplotlib", "matplotlib", "pip install matplotlib"),
        _package("ONNX", "onnx", _EXPORT_HINT),
        Component("device 'auto'", "ok", *device),
    ]


def report():
    """Returns :func:`components` as aligned text, a line for each."""
    return "\n".join(aligned(list(map(dataclasses.astuple, components()))))


def _not_needed(row):
    note = f"where there is one: {gpus.CUDA_HINT}" if row.name == "GPU" else "without a GPU"
    return Component(row.name, "not needed", note=note)


def _package(name, module, hint="", distributions=()):
    """A Python package: imported, and its version read from itself or from its distributions."""
    imported, error = gpus.quietly_imported(module)
    if imported is None:
        root = module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name in (root, module):
            return Component(name, "missing", note=hint)
        return Component(name, "broken", _distribution_version(distributions), gpus.short(error))
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
    """The library that computes on the CPU: its instruction set and threads, or why NumPy computes instead."""
    try:
        module, reason = importlib.import_module("mixprec.native.native_library").load()
    except Exception as error:
        return Component("native library", "broken", note=gpus.short(error))
    if module is None:
        return Component("native library", "missing", note=reason)
    return Component("native library", "ok", module.instructions(), f"threads: {module.threads()}")


def _cuda():
    """CUDA runtime, driver and GPUs, through CuPy."""
    cupy, _ = gpus.quietly_imported("cupy")
    if cupy is None:
        return [Component(name, "missing", note="needs CuPy") for name in ("CUDA runtime", "CUDA driver", "GPU")]
    rows = [
        _cuda_version("CUDA runtime", lambda: cupy.cuda.runtime.runtimeGetVersion()),
        _cuda_version("CUDA driver", lambda: cupy.cuda.runtime.driverGetVersion()),
    ]
    count, reason = gpus.count_devices()
    if not count:
        return [*rows, Component("GPU", "missing", note=reason)]
    return [*rows, *(Component(f"GPU {index}", "ok", note=gpus.device_name(index)) for index in range(count))]


def _cuda_version(name, ask):
    """A version in CUDA's form, 1000 * major + 10 * minor; 0 for none."""
    try:
        version = int(ask())
    except Exception as error:
        return Component(name, "broken", note=gpus.short(error))
    if not version:
        return Component(name, "missing", note=gpus.NO_DRIVER)
    return Component(name, "ok", f"{version // 1000}.{version % 1000 // 10}")


def _cudnn():
    """The cuDNN library, as the frontend loads it."""
    version = _distribution_version(("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"))
    frontend, _ = gpus.quietly_imported("cudnn")
    if frontend is None:
        if version:
            return Component("cuDNN", "ok", version, "installed, and unused without the cuDNN frontend")
        return Component("cuDNN", "missing", note=gpus.CUDA_HINT)
    try:
        loaded = int(frontend.backend_version())
    except Exception as error:
        return Component("cuDNN", "broken", version, gpus.short(error))
    return Component("cuDNN", "ok", f"{loaded // 10000}.{loaded % 10000 // 100}.{loaded % 100}")


def _chainers_cudnn():
    """Whether plain Chainer has a cuDNN: then it takes its branches for cuDNN, and does not convolve by im2col."""
    name = "Chainer's cuDNN"
    cuda, _ = gpus.quietly_imported("chainer.backends.cuda")
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
    """NCCL, for exchanging gradients between GPUs, as CuPy loads it."""
    version = _distribution_version(("nvidia-nccl-cu13", "nvidia-nccl-cu12"))
    cupy, _ = gpus.quietly_imported("cupy")
    if cupy is None and version:
        return Component("NCCL", "ok", version, "installed, and unused without CuPy")
    try:
        loaded = int(gpus.quietly_imported("cupy.cuda.nccl")[0].get_version())
    except Exception:  # CuPy's module is empty if it finds no library
        if version:
            return Component("NCCL", "broken", version, "CuPy cannot load it")
        return Component("NCCL", "missing", note=f"for several GPUs: {gpus.CUDA_HINT}")
    return Component("NCCL", "ok", f"{loaded // 10000}.{loaded % 10000 // 100}.{loaded % 100}")
