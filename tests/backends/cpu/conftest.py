"""The primitives on NumPy's arrays, which are the same by NumPy and by the native library."""

import pytest

from mixprec.backends import cpu, native
from mixprec.native.native_library import library


@pytest.fixture(scope="session", params=["numpy", "native"])
def primitives(request):
    """Both :class:`~mixprec.backends.primitives.Primitives`, one after the other."""
    if request.param == "numpy":
        return cpu.PRIMITIVES
    if library() is None:
        pytest.skip("there is no native library")
    return native.PRIMITIVES
