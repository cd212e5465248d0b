"""The memory of a captured step, counted on a stand-in whose pool hands out what CuPy's would: bytes in use."""

import gc

import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec
from benchmarks.recording_device import null_device
from benchmarks.recording_device.memory import Pool
from mixprec.graph_capture.verification import Verification
from models import MODELS

MEBI = 2**20


class Counted:
    """Bytes in use of all pools, and their peak."""

    def __init__(self, monkeypatch):
        self.now = self.peak = 0
        allocate, take_back = Pool.allocate, Pool.take_back

        def counting(pool, size):
            block = allocate(pool, size)
            self.now += block.size
            self.peak = max(self.peak, self.now)
            return block

        def counting_back(pool, address, size):
            self.now -= size
            take_back(pool, address, size)

        monkeypatch.setattr(Pool, "allocate", counting)
        monkeypatch.setattr(Pool, "take_back", counting_back)

    def peak_of(self, function):
        """Returns the peak while a function runs."""
        self.peak = self.now
        function()
        return self.peak


@pytest.fixture
def counted(monkeypatch):
    null_device.install()
    monkeypatch.setattr(Verification, "differences", lambda *arguments: {})  # nothing is computed
    return Counted(monkeypatch)


def _batch(size):
    return null_device.array(np.zeros((size, 3, 64, 64), np.float32)), null_device.array(np.zeros(size, np.int32))


def _optimizer(arch="resnet50"):
    model = L.Classifier(MODELS[arch](1000))
    mixprec.convert(model, np.zeros((2, 3, 64, 64), np.float32))
    null_device.send(model)
    return mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD()).setup(model)


def _eager(counted, x, t):
    """Returns the peak of an eager step, and the bytes of parameters, masters and momentum."""
    optimizer = _optimizer()
    peaks = [counted.peak_of(lambda: optimizer.update(optimizer.target, x, t)) for _ in range(3)]
    return peaks[-1], sum(param.size * (2 + 4 + 4) for param in optimizer.target.params())


@pytest.mark.slow
def test_a_captured_step_needs_what_an_eager_one_does(counted):
    """At its peak, also in the calls that compare; copies of the state come on top there, three at most."""
    x, t = _batch(64)
    before = counted.now
    eager, state = _eager(counted, x, t)
    eager -= before
    gc.collect()
    assert counted.now <= before + MEBI
    step = mixprec.capture(_optimizer(), required=True)
    peaks = [counted.peak_of(lambda: step(x, t)) - before for _ in range(8)]
    assert step.replays == 3
    assert max(peaks[:3]) <= 1.02 * eager
    assert max(peaks[3:5]) <= 1.02 * eager + 3 * state
    # Outside of the graph: nothing but the state. All that is in it, but for gradients and results, is free there.
    assert max(peaks[5:]) <= state + 60 * MEBI
    assert eager > state + 150 * MEBI  # the activations are what this is about


@pytest.mark.slow
def test_a_second_graph_has_memory_of_its_own_and_gives_it_back(counted):
    step = mixprec.capture(_optimizer("resnet18"), graphs=1, required=True)
    batches = _batch(8), _batch(4)
    for batch in batches:
        for _ in range(6):
            step(*batch)
    in_use = counted.now
    for _ in range(2):
        for batch in batches:
            for _ in range(6):
                step(*batch)
    assert counted.now <= in_use + MEBI
