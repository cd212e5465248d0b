"""Plain Chainer's cuDNN: where CuPy has none, as CuPy 14, Chainer finds :mod:`mixprec.bridge` in its place.

Chainer decides while ``chainer.backends.cuda`` is imported whether there is a cuDNN; :mod:`mixprec.startup` has the two
patches here applied just before.
"""

import logging
import sys

from mixprec.base import cudnn_library, variables
from mixprec.compat.gpu_presence import gpu_is_there
from mixprec.compat.hooks import before_import
from mixprec.compat.registry import LEAVE

_SWITCH = "MIXPREC_CUDNN"
_BRIDGE = "mixprec.bridge.cupy_cudnn"

_logger = logging.getLogger("mixprec")


def is_bridged():
    """Whether the module at ``cupy.cudnn`` is mixprec's bridge, and not CuPy's."""
    return getattr(sys.modules.get("cupy.cudnn"), "__name__", "") == _BRIDGE


def why_not():
    """Returns why Chainer needs no bridge here, though nothing is broken, in one line; empty if it needs one.

    Initializes no CUDA.
    """
    if variables.value(_SWITCH) == "0":
        return f"{_SWITCH}=0"
    try:
        import cupy  # noqa: F401
    except Exception:
        return "CuPy cannot be imported"
    if not gpu_is_there():
        return "there is no GPU"
    return ""


def what_is_missing():
    """Returns which part of cuDNN 9 the bridge needs and does not find, in one line; empty if all is there."""
    try:
        cudnn_library.load()
    except cudnn_library.CudnnMissing as error:
        return str(error)
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        return f"cuDNN's frontend (the Python module cudnn) is broken, {type(error).__name__}: {text}"
    return ""


@before_import("chainer.backends.cuda", target="cupy.cuda.cudnn")
def constants_of_cudnn(original):
    """Without it Chainer has no cuDNN with CuPy 14: its convolutions are im2col and a matrix product."""
    if why_not() or _cupy_has_its_own():
        return LEAVE
    missing = what_is_missing()
    if missing:
        _logger.warning("plain Chainer has no cuDNN, so that its convolutions are im2col and slow: %s", missing)
        return LEAVE
    from mixprec.bridge import constants

    return constants


@before_import("chainer.backends.cuda", target="cupy.cudnn")
def functions_of_cudnn(original):
    """Without it Chainer finds no functions of cuDNN with CuPy 14."""
    from mixprec.bridge import constants, cupy_cudnn

    return cupy_cudnn if sys.modules.get("cupy.cuda.cudnn") is constants else LEAVE


def _cupy_has_its_own():
    """Whether CuPy has the modules that Chainer imports: CuPy 13 and older, with the cuDNN that they were built for."""
    try:
        import cupy.cuda.cudnn
        import cupy.cudnn  # noqa: F401
    except Exception:
        return False
    return True
