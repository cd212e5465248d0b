"""The primitives that are CUDA kernels of mixprec's own, run on the host, and arrays for them."""

import numpy as np

from mixprec.backends.cuda.dropout import Dropouts
from mixprec.backends.cuda.elementwise import Biases, Mixtures
from mixprec.backends.cuda.embedding import Embeddings
from mixprec.backends.cuda.layout import Layouts
from mixprec.backends.cuda.local_response_norm import LocalResponseNorms
from mixprec.backends.cuda.loss import Losses
from mixprec.backends.cuda.pooling import Poolings
from tests.stand_ins.device_stand_in import DeviceArray


class OwnKernels(Poolings, LocalResponseNorms, Losses, Mixtures, Dropouts, Layouts, Biases, Embeddings):
    """Everything that needs no cuDNN.

    Args:
        launcher: :class:`~tests.stand_ins.host_launch.HostLauncher`.
    """

    def __init__(self, launcher):
        super().__init__(launcher, cudnn=None)

    def launches_of(self, primitive, *arguments, **keywords):
        """Returns how often something is launched by a primitive."""
        before = len(self.launcher.launches)
        getattr(self, primitive)(*arguments, **keywords)
        return len(self.launcher.launches) - before


def send(value, misaligned=False):
    """A copy on the stand-in device; ``misaligned``: one that begins in the middle of 16 bytes."""
    value = np.asarray(value)
    memory = np.empty(value.size + 1, value.dtype)
    view = memory[int(misaligned) :][: value.size].reshape(value.shape)
    view[...] = value
    return view.view(DeviceArray)


def receive(found):
    """A result as an array of NumPy."""
    assert isinstance(found, DeviceArray)
    assert found.flags.c_contiguous
    return np.asarray(found)


def assert_same(found, expected, sign_of_zero=True):
    """Asserts that two arrays are equal bit for bit, but for what NaN are made of, and for the sign of 0 if told so."""
    found = receive(found)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if found.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):  # a signalling NaN
            found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    if sign_of_zero and found.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found) & ~np.isnan(found), np.signbit(expected) & ~np.isnan(expected))


def odd_values(rng, shape, dtype):
    """Numbers of all magnitudes, among them NaN, infinities, subnormal ones, both zeros, and equal ones."""
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize), shape, dtype=f"u{dtype.itemsize}")
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 65504, 1e-7], np.float32).astype(dtype)
    return np.where(rng.random(shape) < 0.5, bits.view(dtype), special[rng.integers(0, len(special), shape)])
