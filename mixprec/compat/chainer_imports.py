"""Modules and names that ``import chainer``, ``chainer.testing`` and ``chainer.gradient_check`` themselves need."""

import types

from mixprec.compat.hooks import before_import, while_importing
from mixprec.compat.registry import LEAVE, MISSING


@before_import("chainer", target="chainer._environment_check")
def environment_check(original):
    """Without it ``import chainer`` needs ``numpy.distutils`` (gone with Python 3.12) and ``pkg_resources``.

    That is gone from setuptools 82, and a warning before. Chainer would look for Python 3.5.0, a macOS BLAS and ancient
    releases of CuPy and iDeep.
    """
    stub = types.ModuleType("chainer._environment_check", "Replaced by mixprec.compat.")
    stub.check = lambda: None
    return stub


@while_importing("chainer.functions.array.as_strided", target="numpy:sctypes")
def numpy_sctypes(original):
    """Without it ``import chainer`` fails: it reads ``np.sctypes``, which is gone in NumPy 2."""
    return scalar_types() if original is MISSING else LEAVE


def scalar_types():
    """The part of NumPy 1's ``np.sctypes`` that Chainer reads."""
    import numpy as np

    return {
        "int": [np.int8, np.int16, np.int32, np.int64],
        "float": [np.float16, np.float32, np.float64, np.longdouble],
    }


@while_importing("chainer.testing.helper", "chainer.testing.doctest_helper", target="pkg_resources")
def pkg_resources(original):
    """Without it ``chainer.testing`` needs ``pkg_resources``, which warns, and is gone from setuptools 82."""
    from mixprec.compat import package_resources

    return package_resources
