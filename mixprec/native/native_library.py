"""The compiled library, or the reason why it is missing.

``MIXPREC_NATIVE=0`` disables it. ``MIXPREC_NATIVE=avx512bf16`` avoids AMX, ``MIXPREC_NATIVE=avx512`` all instructions
for BF16, and ``MIXPREC_NATIVE=avx2`` AVX-512.
"""

import functools
import importlib
import logging
import os
import pathlib
import platform
import shlex
import sys

import numpy as np

from mixprec.base import variables
from mixprec.base.dtypes import BFLOAT16, STORAGE_DTYPES
from mixprec.base.process_limits import number_of_threads
from mixprec.native import sources

SWITCH = "MIXPREC_NATIVE"
_BUILD = (
    f"cd {shlex.quote(str(pathlib.Path(__file__).parents[2]))} && "
    f"{shlex.quote(sys.executable)} setup.py -q build_ext --inplace --force"
)
_INSTALL = "to have it, install mixprec again where there is a C++ compiler; pip's -v shows what that says"
_MALLOC = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}  # of the C library: see man mallopt
_LOGGER = logging.getLogger("mixprec")
is_stored = STORAGE_DTYPES.__contains__  # of a dtype of NumPy, in native byte order


def load():
    """Loads the library.

    Returns:
        tuple: ``(module, reason)``: the module ``_library``, or ``None`` and one line with the reason.

    Raises:
        mixprec.base.variables.VariableError: ``MIXPREC_NATIVE`` has another value.
    """
    switch = variables.value(SWITCH)
    if switch == "0":
        return None, f"off: {SWITCH}=0"
    try:
        _library = importlib.import_module("mixprec.native._library")
    except ModuleNotFoundError:
        if platform.machine() not in ("x86_64", "AMD64"):
            return None, f"it is for x86-64, not for {platform.machine()}"
        if sources.digest() is None:
            return None, f"it was not compiled; {_INSTALL}"
        return None, f"it was not compiled; to compile it, or to see why that fails: {_BUILD}"
    except ImportError as error:  # the processor lacks AVX2, or it was compiled for other system libraries
        return None, str(error)
    if sources.digest() not in (None, _library.sources()):
        return None, f"its sources have changed; to compile it: {_BUILD}"
    getattr(_library, "use_best" if switch == "1" else f"use_{switch}")()
    _library.set_threads(min(number_of_threads(), _library.MOST_THREADS))
    if not _MALLOC & os.environ.keys():
        _library.keep_freed_memory()
    return _library, ""


@functools.cache
def library():
    """Returns the module ``_library``, or ``None`` after one warning that NumPy and Chainer's loop compute instead."""
    module, reason = load()
    if module is None and variables.value(SWITCH) != "0":
        _LOGGER.warning(
            "NumPy computes instead of mixprec's native library, float16 at half the speed, and Chainer's own loop "
            "updates parameters: %s",
            reason,
        )
    return module


def raw(array):
    """Returns an array in the form of the library: C-contiguous and aligned; bfloat16, which has no buffers, as uint16.

    It is ``array`` itself or a view, if that is contiguous and aligned, otherwise a copy; ``None`` stays ``None``.
    """
    if array is None:
        return None
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C")
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def are_stored_alike(first, *others):
    """Whether arrays (``None`` does not count) are of one shape, not (..., 0), and of one storage dtype."""
    if not is_stored(first.dtype) or not first.ndim or not first.shape[-1]:
        return False
    return all(other is None or (other.dtype == first.dtype and other.shape == first.shape) for other in others)
