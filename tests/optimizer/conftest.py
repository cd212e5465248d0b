"""What tests of a step on a device share."""

import numpy as np
import pytest

from mixprec.optimizer import step
from tests.stand_ins.device_stand_in import DeviceArray
from tests.stand_ins.host_launch import HostLauncher


class _Launcher(HostLauncher):
    def holds(self, array):
        return isinstance(array, np.ndarray)  # some of Chainer's functions lose the stand-in's class on NumPy


@pytest.fixture
def launcher(monkeypatch):
    """The launcher of all arrays of the stand-in for a device; it runs kernels on the host."""
    launcher = _Launcher()
    monkeypatch.setattr(step, "launcher_of", lambda array: launcher if isinstance(array, DeviceArray) else None)
    return launcher
