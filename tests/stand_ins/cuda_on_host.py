"""The CUDA backend on the host: own kernels by g++, cuDNN and cuBLAS by stand-ins that compute with NumPy."""

import contextlib
import types

import chainer
import numpy as np

from mixprec.backends.cublas import Cublas
from mixprec.backends.cuda import Cuda
from mixprec.backends.cuda.candidates import Candidates
from mixprec.backends.cuda.matrix_context import MatrixContext
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.context import CudnnContext
from tests.stand_ins import fake_cudnn, kernels_on_host
from tests.stand_ins.cudnn_host import HostDevice
from tests.stand_ins.fake_cublas import FakeCublas
from tests.stand_ins.host_launch import HostLauncher

ENGINES = ("cudnn", "kernels")


class _CudnnContext(CudnnContext):
    def plan(self, operation):
        plan = super().plan(operation)
        plan.works_in_place = True  # it would be tried by further runs, which nobody wants to count here
        return plan


class HostCuda(Cuda):
    """A :class:`Cuda` without a device, that counts its launches.

    Args:
        node_cost: milliseconds that a node of cuDNN's graphs takes when it is measured; a kernel of ours takes 1.
        capability: compute capability of the device.

    Attributes:
        cublas: :class:`~tests.stand_ins.fake_cublas.FakeCublas`.
    """

    def __init__(self, node_cost=1.0, capability=90):
        device = HostDevice(self._took)
        device.capability = capability
        self.cublas = FakeCublas(device)
        matrices = MatrixContext(0, cublas=Cublas(self.cublas), device=device)
        super().__init__(HostLauncher(), _CudnnContext(0, frontend=fake_cudnn, device=device), matrices)
        self._node_cost = node_cost
        self._counted = 0, 0

    def _took(self):
        kernels, plans = self._counted
        self._counted = len(self.launcher.launches), len(fake_cudnn.executed)
        nodes = sum(len(kinds) for kinds, _ in fake_cudnn.executed[plans:])
        return self._counted[0] - kernels + self._node_cost * nodes

    @contextlib.contextmanager
    def counting(self):
        """Yields what will hold the launches within: the number of ``kernels`` of our own, the ``plans`` of cuDNN."""
        found = types.SimpleNamespace()
        kernels, plans = len(self.launcher.launches), len(fake_cudnn.executed)
        yield found
        found.kernels = len(self.launcher.launches) - kernels
        found.plans = ["+".join(nodes) for nodes, _ in fake_cudnn.executed[plans:]]


@contextlib.contextmanager
def engine(name):
    """For a while, batch normalization is that of cuDNN, where that has one, or all own kernels."""
    if name == "kernels":
        with chainer.using_config("use_cudnn", "never"):
            yield
        return
    compile_seconds, taken = settings.current().compile_seconds, Candidates._taken
    settings.configure(compile_seconds=1)  # cuDNN's engine is the last candidate

    def last(primitives, key, candidates, arguments):
        return (
            list(candidates(*key[1:]))[-1][1]
            if key[0].startswith("batch_norm")
            else taken(primitives, key, candidates, arguments)
        )

    Candidates._taken = last
    try:
        yield
    finally:
        Candidates._taken = taken
        settings.configure(compile_seconds=compile_seconds)


def send(value, misaligned=False):
    """Copies arrays to the stand-in device, also those in tuples; ``None`` stays."""
    if value is None:
        return None
    if isinstance(value, tuple):
        copies = [send(part, misaligned) for part in value]
        return type(value)(*copies) if hasattr(value, "_fields") else tuple(copies)
    return kernels_on_host.send(value, misaligned)


def receive(value):
    """Returns results as arrays of NumPy, also those in tuples; ``None`` stays."""
    if value is None:
        return None
    if isinstance(value, tuple):
        parts = [receive(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return kernels_on_host.receive(value)


def same(found, expected):
    """Asserts that results are equal, but for what NaN are made of and the sign of 0."""
    found = receive(found)
    assert type(found) is type(expected)
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            same_or_none(one, other)
    else:
        same_or_none(found, expected)


def same_or_none(found, expected):
    if expected is None or found is None:
        assert found is expected
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if found.dtype.kind == "V":  # NaN of bfloat16 are not equal to NumPy's tests
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(found, expected)
