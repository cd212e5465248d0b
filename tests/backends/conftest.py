"""The primitives that a test may ask for, with arrays of NumPy; and the sides of :mod:`tests.stand_ins.cuda_sides`."""

import pytest

from mixprec.backends import cpu
from mixprec.backends.cpu import native_primitives as native
from mixprec.native.native_library import library
from tests.stand_ins.cuda_sides import OnGpu, OnHost
from tests.stand_ins.cuda_with_numpy import CudaWithNumPy


def _primitives(name):
    if name == "numpy":
        return cpu.PRIMITIVES
    if name == "native":
        if library() is None:
            pytest.skip("there is no native library")
        return native.PRIMITIVES
    return CudaWithNumPy(name)


@pytest.fixture(scope="session", params=["numpy", "native"])
def primitives(request):
    """Both :class:`~mixprec.backends.primitives.Primitives` of a CPU, one after the other."""
    return _primitives(request.param)


@pytest.fixture(scope="session", params=["numpy", "kernels"])
def on_both(request):
    """Those by NumPy, and by CUDA kernels on the host: for what the native library has not."""
    return _primitives(request.param)


@pytest.fixture(scope="session", params=["numpy", "native", "kernels"])
def anywhere(request):
    """Both of a CPU, and CUDA kernels on the host."""
    return _primitives(request.param)


@pytest.fixture(scope="session", params=["numpy", "native", "kernels", "cudnn"])
def by_any_engine(request):
    """All that have a batch normalization: cuDNN is its stand-in."""
    return _primitives(request.param)


@pytest.fixture(scope="module")
def host():
    return OnHost()


@pytest.fixture(scope="module")
def gpu():
    device = OnGpu()
    yield device
    device.close()


@pytest.fixture
def side(request):
    """The host or the GPU, as the parameter says; for each test, so that pytest leaves them in this order."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def each_side(request):
    return request.getfixturevalue(request.param)
