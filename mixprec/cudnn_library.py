"""cuDNN 9 and NVIDIA's Python frontend for it, loaded when somebody asks for them."""

import functools

_INSTALL = 'pip install -e ".[cuda13]"  (CUDA 12: ".[cuda12]")'


class CudnnMissing(RuntimeError):
    """cuDNN, its frontend, or a library of CUDA that they load is not installed."""


@functools.cache
def load():
    """Returns the module ``cudnn`` of the frontend, with cuDNN loaded. Needs no GPU and initializes no CUDA.

    Raises:
        CudnnMissing: something is not installed; one line that says what, and how to install it.
    """
    try:
        from cuda import pathfinder
    except ImportError:
        raise _missing("cuda-pathfinder (the Python module cuda.pathfinder)") from None
    # The frontend finds the CUDA runtime only where a process has loaded it already, which CuPy, being linked
    # statically, has not; and cuDNN before 9.28 compiles its batch normalization with an NVRTC that has to be there.
    for name in ("cudart", "nvrtc"):
        try:
            pathfinder.load_nvidia_dynamic_lib(name)
        except RuntimeError:
            raise _missing(f"lib{name}.so of CUDA") from None
    try:
        import cudnn
    except ImportError:
        raise _missing("nvidia-cudnn-frontend (the Python module cudnn)") from None
    try:
        cudnn.backend_version()
    except RuntimeError:
        raise _missing("nvidia-cudnn-cu13 (libcudnn.so.9)") from None
    return cudnn


def _missing(what):
    return CudnnMissing(f"{what} is missing: {_INSTALL}")
