"""The compiled library, or why it is not there.

``MIXPREC_NATIVE=0`` leaves it out, ``MIXPREC_NATIVE=avx2`` does without AVX-512.
"""

import functools
import logging
import os

import numpy as np

from mixprec.dtypes import BFLOAT16
from mixprec.native.threads import number_of_threads

_SWITCH = "MIXPREC_NATIVE"
_LOGGER = logging.getLogger("mixprec")


@functools.cache
def library():
    """Returns the module ``_library``, or ``None`` after one warning that NumPy computes instead."""
    switch = os.environ.get(_SWITCH, "1")
    if switch not in ("0", "1", "avx2"):
        raise ValueError(f"{_SWITCH}={switch}: 0, 1 or avx2 are possible")
    if switch == "0":
        return None
    try:
        from mixprec.native import _library
    except ImportError as error:
        _LOGGER.warning(
            "NumPy computes what the native library would, float16 at half its speed (%s); to have it, install mixprec "
            "where there is g++",
            error,
        )
        return None
    if switch == "avx2":
        _library.use_avx2()
    _library.set_threads(number_of_threads())
    return _library


def raw(array):
    """Returns an array as the library takes it: C-contiguous and aligned; bfloat16, which has no buffers, as uint16.

    It is ``array`` itself or a view, if that is contiguous and aligned, otherwise a copy.
    """
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C")
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array
