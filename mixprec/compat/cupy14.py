"""Chainer on CuPy 14 where there is no cuDNN, neither CuPy's own nor a stand-in."""

import contextlib
import sys
import warnings

from mixprec.compat.hooks import after_import, around, inside
from mixprec.compat.registry import LEAVE

_NO_CUDNN = (
    "CuPy 14 has no cuDNN, and mixprec's bridge to cuDNN 9 is off (mixprec info says why), so "
    "chainer.backends.cuda has no {name}; use chainer.functions, which work without it"
)


@after_import("chainer.backends.cuda:check_cuda_available._already_warned")
def no_cudnn_warning(original):
    """Without it ``import chainer`` warns that cuDNN is not enabled, and to reinstall CuPy, which would not help."""
    return True


@around("chainer.backends.cuda:should_use_cudnn_tensor_core")
def tensor_core_question(original, dtype):
    """Without it ``chainer.should_use_cudnn_tensor_core`` raises NameError where there is no cuDNN; now False."""
    cuda = _cuda()
    if not cuda.cudnn_enabled and cuda.config.use_cudnn_tensor_core == "auto":
        return False
    return original(dtype)


@after_import("chainer.backends.cuda:__getattr__")
def explained_missing_cudnn(original):
    """Without it ``chainer.backends.cuda.cudnn`` is missing with no word on why."""
    if "cudnn" in vars(_cuda()):  # also with CHAINER_CUDNN=0
        return LEAVE

    def __getattr__(name):
        if name == "cudnn":
            raise AttributeError(_NO_CUDNN.format(name=name))
        raise AttributeError(f"module 'chainer.backends.cuda' has no attribute {name!r}")

    return __getattr__


@after_import("chainer.backends.cuda:libcudnn")
def explained_missing_libcudnn(original):
    """Without it names of ``chainer.backends.cuda.libcudnn`` are missing with no word on why."""
    cuda = _cuda()
    return _MissingCudnn() if cuda.available and "cudnn" not in vars(cuda) else LEAVE


def _cuda():
    return sys.modules["chainer.backends.cuda"]


class _MissingCudnn:
    """Replaces ``cupy.cuda.cudnn``."""

    def __getattr__(self, name):
        raise AttributeError(_NO_CUDNN.format(name=f"libcudnn.{name}"))


@contextlib.contextmanager
def no_nccl_warning():
    """Without it ``import chainer`` warns when CuPy is there and NCCL is not, though only some updaters need it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*nccl library could not be loaded", category=UserWarning)
        yield


inside(no_nccl_warning, "chainer.training.updaters.multiprocess_parallel_updater", "chainermn.nccl")
