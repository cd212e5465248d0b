"""Chainer on CuPy 14, which has no cuDNN, where :mod:`mixprec.bridge` does not stand in for it."""

import functools
import warnings

from mixprec.compat import hooks

_NO_CUDNN = (
    "CuPy 14 has no cuDNN, and mixprec's bridge to cuDNN 9 is off (python -m mixprec says why), so "
    "chainer.backends.cuda has no {name}; use chainer.functions, which work without it"
)


@hooks.after_import("chainer.backends.cuda")
def no_cudnn_warning(cuda):
    """Without it ``import chainer`` warns that cuDNN is not enabled, and to reinstall CuPy, which would not help."""
    cuda.check_cuda_available._already_warned = True


@hooks.after_import("chainer.backends.cuda")
def tensor_core_question(cuda):
    """Without it ``chainer.should_use_cudnn_tensor_core`` raises NameError where there is no cuDNN; now False."""
    original = cuda.should_use_cudnn_tensor_core

    @functools.wraps(original)
    def should_use_cudnn_tensor_core(dtype):
        if not cuda.cudnn_enabled and cuda.config.use_cudnn_tensor_core == "auto":
            return False
        return original(dtype)

    cuda.should_use_cudnn_tensor_core = should_use_cudnn_tensor_core


@hooks.after_import("chainer.backends.cuda")
def explained_missing_names(cuda):
    """Without it ``chainer.backends.cuda.cudnn`` and names of ``libcudnn`` are missing with no word on why."""
    if "cudnn" in vars(cuda):  # also with CHAINER_CUDNN=0
        return

    def __getattr__(name):
        if name == "cudnn":
            raise AttributeError(_NO_CUDNN.format(name=name))
        raise AttributeError(f"module 'chainer.backends.cuda' has no attribute {name!r}")

    cuda.__getattr__ = __getattr__
    if cuda.available:
        cuda.libcudnn = _MissingCudnn()


class _MissingCudnn:
    """Takes the place of ``cupy.cuda.cudnn``."""

    def __getattr__(self, name):
        raise AttributeError(_NO_CUDNN.format(name=f"libcudnn.{name}"))


@hooks.while_importing("chainer.training.updaters.multiprocess_parallel_updater", "chainermn.nccl")
def no_nccl_warning():
    """Without it ``import chainer`` warns when CuPy is there and NCCL is not, though only some updaters need it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*nccl library could not be loaded", category=UserWarning)
        yield
