"""The CUDA backend on the host: own kernels compiled by g++, cuDNN's graphs computed by :mod:`fake_cudnn`."""

import contextlib
import types

import chainer
import fake_cudnn
import numpy as np
from cudnn_host import HostDevice
from device_stand_in import array
from host_launch import HostLauncher

from mixprec.backends.cuda import Cuda
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.dnn import Dnn
from mixprec.backends.primitives import Affine, Saved


class HostCuda(Cuda):
    """A :class:`Cuda` without a device, that counts its launches.

    Args:
        folder: where compiled kernels go, and stay.
        took: callable that says how many milliseconds a call took that is measured.
    """

    def __init__(self, folder, took=lambda: 1.0):
        dnn = Dnn(0, frontend=fake_cudnn, device=HostDevice(took))
        super().__init__(HostLauncher(folder), dnn)

    @contextlib.contextmanager
    def counting(self):
        """Yields what will hold the numbers of launches within: ``kernels`` of our own, and ``plans`` of cuDNN."""
        found = types.SimpleNamespace(kernels=None, plans=None)
        before = len(self.launcher.launches), len(fake_cudnn.executed)
        yield found
        found.kernels, found.plans = len(self.launcher.launches) - before[0], len(fake_cudnn.executed) - before[1]


def send(value):
    """Moves arrays of NumPy to the device, also those in tuples; everything else stays."""
    if isinstance(value, np.ndarray):
        return array(value)
    if isinstance(value, (Affine, Saved)):
        return type(value)(*map(send, value))
    return tuple(map(send, value)) if isinstance(value, tuple) else value


def receive(value):
    """Moves arrays of the device to NumPy, also those in tuples; everything else stays."""
    if isinstance(value, (Affine, Saved)):
        return type(value)(*map(receive, value))
    if isinstance(value, tuple):
        return tuple(map(receive, value))
    return np.asarray(value) if isinstance(value, np.ndarray) else value


@contextlib.contextmanager
def configured(**changes):
    """Other settings of cuDNN for a while; nothing is kept on disk unless asked for."""
    before = settings.current()
    settings.configure(**{"cache": None, **changes})
    yield
    settings.configure(**{name: getattr(before, name) for name in before.__dataclass_fields__})


def without_cudnn():
    """For a while, Chainer is told not to use cuDNN: batch normalization then is all own kernels."""
    return chainer.using_config("use_cudnn", "never")
