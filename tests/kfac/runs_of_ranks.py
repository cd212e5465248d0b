"""Runs of one process alone, and of several that are threads, with K-FAC."""

import copy
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from mixprec.optimizer import ranks as ranks_of_optimizer
from tests.stand_ins import rank_threads

IMAGES = 8  # of all ranks together


class Network(chainer.Chain):
    """Convolutions, one of them in groups, and linear layers; with a batch normalization if there is to be one."""

    def __init__(self, norm=False):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.first = L.Convolution2D(3, 8, 3, stride=2, pad=1)
            self.groups = L.Convolution2D(8, 8, 3, pad=1, groups=2, nobias=True)
            self.norm = L.BatchNormalization(8) if norm else F.identity
            self.extra, self.out = L.Linear(8, 8), L.Linear(8, 5)
        self.uses_extra = True

    def forward(self, x):
        h = F.relu(self.norm(self.groups(F.relu(self.first(x)))))
        h = F.mean(h, axis=(2, 3))
        return self.out(F.relu(self.extra(h)) if self.uses_extra else h)


def batch(step, size=IMAGES):
    """Images and labels of all ranks."""
    random = np.random.RandomState(step)
    return random.normal(size=(size, 3, 7, 7)).astype(np.float32), random.randint(0, 5, size).astype(np.int32)


class Run:
    """A model and its optimizer.

    Args:
        communicator: of this process, or ``None``.
        compute: dtype.
        loss_scale: as for the optimizer.
        network: a network.
        kfac: further arguments of :class:`mixprec.KFAC`.
    """

    def __init__(self, communicator=None, compute="float32", loss_scale=64.0, network=None, **kfac):
        self.model = L.Classifier(Network() if network is None else network)
        self.kfac = mixprec.KFAC(**{"damping": 0.1, **kfac})
        rule, loss_scale = optimizers.MomentumSGD(0.05), copy.deepcopy(loss_scale)
        self.optimizer = mixprec.MixedPrecisionOptimizer(
            rule, loss_scale, preconditioner=self.kfac, communicator=communicator
        ).setup(self.model)
        self.optimizer.add_hook(optimizer_hooks.WeightDecay(1e-3))
        self.communicator = communicator
        mixprec.convert(self.model, batch(0)[0], compute=compute)

    @property
    def own(self):
        """Which of the images are those of this process."""
        if self.communicator is None:
            return slice(None)
        part = IMAGES // self.communicator.size
        return slice(part * self.communicator.rank, part * (self.communicator.rank + 1))

    def step(self, x, t):
        self.optimizer.update(self.model, x[self.own], t[self.own])

    def curvature(self):
        """Copies of averages, inverses and numbers of steps, by names."""
        return {name: np.array(array) for name, array in self.kfac.state().items()}

    def state(self):
        """Copies of all arrays that ranks have in common, by names."""
        found = {name: np.array(self.optimizer.master(param).array) for name, param in self.model.namedparams()}
        for name, param in self.model.namedparams():
            found |= {f"{key} of {name}": np.array(value) for key, value in param.update_rule.state.items()}
            found[f"{name} in its dtype"] = np.array(param.array)
        numbers = self.optimizer.t, self.optimizer.skipped, self.optimizer.loss_scale
        return {**found, **self.curvature(), "t, skipped, loss scale": np.array(numbers)}


@pytest.fixture
def threads(monkeypatch):
    """Runs ``function(communicator)`` in so many threads, each of which is a process; returns what they return."""
    monkeypatch.setattr(ranks_of_optimizer, "MpiTransport", rank_threads.ThreadTransport)

    def run(size, function):
        def body(rank, of_threads):
            return function(types.SimpleNamespace(mpi_comm=of_threads, rank=rank, size=size))

        return rank_threads.run(size, body)

    return run


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), name


def assert_close(found, expected, tolerance=1e-5):
    """Differences are small beside the largest number of each array."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        limit = tolerance * max(abs(value).max(), 1e-3)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=limit, err_msg=name)
