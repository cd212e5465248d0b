"""What tests of a step on a device share."""

import numpy as np
import pytest

from mixprec.optimizer import fallback_form, running_statistics, step
from mixprec.optimizer.batch import device_batch
from mixprec.precision import loss_scale, scale_search, step_counter, step_state
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


@pytest.fixture
def reads(launcher, monkeypatch):
    """Returns a function that gives the number of reads since the test began, all of them through the one door."""
    DeviceArray.reads = 0
    through_the_door = []

    def counted(value):
        through_the_door.append(value)
        return value.item()

    for module in (loss_scale, step_state, step_counter, device_batch, fallback_form, running_statistics, scale_search):
        monkeypatch.setattr(module, "to_host", counted)

    def count():
        assert DeviceArray.reads <= len(through_the_door), "a value was read past mixprec.backends.transfers"
        return DeviceArray.reads

    return count
