"""What ``import chainer``, ``chainer.testing`` and ``chainer.gradient_check`` themselves need."""

import sys
import types

from mixprec.compat import hooks


@hooks.while_importing("chainer")
def environment_check():
    """Stands in for ``chainer._environment_check``, for good.

    It imports ``numpy.distutils`` (gone with Python 3.12) and ``pkg_resources`` (gone from setuptools 82, a
    warning before), to look for Python 3.5.0, a macOS BLAS and ancient releases of CuPy and iDeep.
    """
    stub = types.ModuleType("chainer._environment_check", "Replaced by mixprec.compat.")
    stub.check = lambda: None
    sys.modules[stub.__name__] = stub
    yield


@hooks.while_importing("chainer.functions.array.as_strided")
def numpy_sctypes():
    """Gives ``np.sctypes``, gone in NumPy 2 and read when ``as_strided`` is imported, while that is so."""
    import numpy as np

    if hasattr(np, "sctypes"):
        yield
        return
    np.sctypes = scalar_types()
    try:
        yield
    finally:
        del np.sctypes


def scalar_types():
    """The part of NumPy 1's ``np.sctypes`` that Chainer reads."""
    import numpy as np

    return {
        "int": [np.int8, np.int16, np.int32, np.int64],
        "float": [np.float16, np.float32, np.float64, np.longdouble],
    }


@hooks.while_importing("chainer.testing.helper", "chainer.testing.doctest_helper")
def pkg_resources():
    """Stands in for ``pkg_resources``, gone from setuptools 82 and a warning before, in ``with_requires``."""
    stub = types.ModuleType("pkg_resources", "The part that chainer.testing uses, by mixprec.compat.")
    stub.ResolutionError = _ResolutionError
    stub.WorkingSet = _WorkingSet
    with hooks.module_in_place("pkg_resources", stub):
        yield


class _ResolutionError(Exception):
    """A requirement is not met."""


class _WorkingSet:
    """The installed distributions."""

    def require(self, *requirements):
        """Raises :class:`_ResolutionError` unless each requirement, e.g. ``'numpy>=1.10'``, is installed."""
        from importlib import metadata

        from packaging.requirements import Requirement

        for text in requirements:
            requirement = Requirement(text)
            try:
                version = metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                raise _ResolutionError(f"{text}: {requirement.name} is not installed") from None
            if not requirement.specifier.contains(version, prereleases=True):
                raise _ResolutionError(f"{text}: {requirement.name} {version} is installed")
