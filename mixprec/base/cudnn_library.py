"""cuDNN 9 and NVIDIA's Python frontend for it, loaded at the first use."""

import contextlib
import functools

from mixprec.base.installation import cuda_hint


class CudnnMissing(RuntimeError):
    """cuDNN, its frontend, or a library of CUDA that they load is not installed."""


@functools.cache
def load():
    """Returns the module ``cudnn`` of the frontend, with cuDNN loaded. Needs no GPU and initializes no CUDA.

    Raises:
        CudnnMissing: a library is not installed; one line that names it, and how to install it.
    """
    with _needing("cuda-pathfinder (the Python module cuda.pathfinder)", ImportError):
        from cuda import pathfinder
    # The frontend finds the CUDA runtime only where a process has loaded it already, and CuPy, which is linked
    # statically, has not; and cuDNN before 9.28 needs NVRTC to compile its batch normalization.
    for name in ("cudart", "nvrtc"):
        with _needing(f"lib{name}.so of CUDA", RuntimeError):
            pathfinder.load_nvidia_dynamic_lib(name)
    with _needing("nvidia-cudnn-frontend (the Python module cudnn)", ImportError):
        import cudnn
    with _needing("nvidia-cudnn-cu13 (libcudnn.so.9)", RuntimeError):
        cudnn.backend_version()
    return cudnn


@contextlib.contextmanager
def _needing(what, error):
    """A context in which an error becomes a :class:`CudnnMissing` that names the library."""
    try:
        yield
    except error:
        raise CudnnMissing(f"{what} is missing: {cuda_hint()}") from None
