"""Helpers of all functions of the bridge: arrays, and the fallback to Chainer's own code if cuDNN has no engine."""

import contextlib
import functools

import chainer
import ml_dtypes
import numpy as np

from mixprec.backends.cudnn.errors import NoEngine
from mixprec.base.announcements import announce

_FLOAT = np.dtype(np.float32)
_STORED = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32)))


class NotBridged(RuntimeError):
    """A function of ``cupy.cudnn`` that mixprec does not have; Chainer never calls it, see ``branches.py``."""


def or_chainers_own(own, name=None):
    """Decorates a function of the bridge with a fallback for cases that it cannot compute.

    In these cases cuDNN has no engine, or an array is in float64. They are logged once.

    Args:
        own: function with the same arguments, computed by Chainer without cuDNN.
        name: name of the function in ``cupy.cudnn``; ``None`` for its own name.
    """

    def decorate(function):
        @functools.wraps(function)
        def call(*arguments, **options):
            reason = _what_is_not_stored(arguments)
            if reason is None:
                try:
                    return function(*arguments, **options)
                except NoEngine as error:
                    reason = str(error)
            announce("cupy.cudnn.%s by Chainer's own, slower path: %s", name or function.__name__, reason)
            with chainer.using_config("use_cudnn", "never"):
                return own(*arguments, **options)

        return call

    return decorate


def contiguous(array):
    """Returns an array, or a copy of it, that is C-contiguous."""
    return array if array.flags.c_contiguous else array.copy(order="C")


def floating(array):
    """Returns an array, or a copy of it, in float32."""
    return contiguous(array) if array.dtype == _FLOAT else array.astype(_FLOAT, order="C")


@contextlib.contextmanager
def writing(array, dtype=None):
    """Yields an array to write into, and afterwards copies it to ``array``; yields ``array`` itself if possible.

    Args:
        array: array of any layout.
        dtype: required dtype of the yielded array; ``None`` for the dtype of ``array``.
    """
    fits = array.flags.c_contiguous and dtype in (None, array.dtype)
    target = array if fits else array.astype(dtype or array.dtype, order="C")
    yield target
    if not fits:
        array[...] = target


@contextlib.contextmanager
def configured(**wanted):
    """A context in which Chainer's configuration has these values, which Chainer has read and passed as arguments."""
    with contextlib.ExitStack() as stack:
        for name, value in wanted.items():
            if getattr(chainer.config, name) != value:
                stack.enter_context(chainer.using_config(name, value))
        yield


def _what_is_not_stored(arguments):
    dtypes = [each.dtype for each in arguments if hasattr(each, "dtype") and not isinstance(each, np.generic)]
    return next((f"an array of {dtype.name}" for dtype in dtypes if dtype.kind == "f" and dtype not in _STORED), None)
