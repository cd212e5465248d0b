"""Installs the bridge: if CuPy has no cuDNN, as CuPy 14, Chainer finds :mod:`mixprec.bridge` instead.

Chainer decides during the import of ``chainer.backends.cuda`` whether there is a cuDNN; :mod:`mixprec.startup` applies
the two patches of this module just before.
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
    """Returns why Chainer needs no bridge here, in one line; empty if it needs one.

    Initializes no CUDA.
    """
    if variables.value(_SWITCH) == "0":
        return f"{_SWITCH}=0"
    try:
        import cupy  # noqa: F401
    except Exception:
        return "CuPy cannot be imported"
    return "" if gpu_is_there() else "there is no GPU"


def what_is_missing():
    """Returns the missing part of cuDNN 9 that the bridge needs, in one line; empty if everything is there."""
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
    """Whether CuPy has the modules that Chainer imports: CuPy 13 and older, with the cuDNN they were built for."""
    try:
        import cupy.cuda.cudnn
        import cupy.cudnn  # noqa: F401
    except Exception:
        return False
    return True
