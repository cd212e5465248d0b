"""Runs with and without a communicator beside each other, for tests with the twin."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import serializers

import mixprec
from tests.stand_ins.twin_transport import wrapped
from tests.stand_ins.update_pair import assert_same_bits


class Network(chainer.Chain):
    """Convolutions in channels-last memory once it is converted, a shared layer, and one that is used on demand."""

    def __init__(self, seed=0):
        super().__init__()
        np.random.seed(seed)
        with self.init_scope():
            self.first, self.second = L.Convolution2D(3, 8, 3, pad=1), L.Convolution2D(8, 8, 3, pad=1)
            self.norm = L.BatchNormalization(8)
            self.extra = L.Linear(8, 8)
            self.out = L.Linear(8, 5)
        self.uses_extra = True

    def forward(self, x):
        h = F.relu(self.norm(self.first(x)))
        h = F.mean(F.relu(self.second(self.second(h))), axis=(2, 3))
        return self.out(self.extra(h) if self.uses_extra else h)


def batch(seed, size=6):
    random = np.random.RandomState(seed)
    return random.normal(size=(size, 3, 6, 6)).astype("f"), random.randint(0, 5, size).astype("i")


def built(compute, rule, make, **settings):
    model = L.Classifier(Network())
    optimizer = make(rule, **settings).setup(model)
    mixprec.convert(model, batch(0)[0], compute=compute)
    return model, optimizer


def alone(rule, loss_scale="dynamic", **settings):
    return mixprec.MixedPrecisionOptimizer(rule, loss_scale, **settings)


def assert_same_runs(run, compute, new_rule, **settings):
    """Runs with and without a communicator; all that files hold, and the arrays of parameters, are the same."""
    sides = []
    for make in (alone, wrapped):
        model, optimizer = built(compute, new_rule(), make, **settings)
        run(model, optimizer)
        file = {}
        serializers.DictionarySerializer(file).save(optimizer)
        serializers.DictionarySerializer(file)["model"].save(model)
        arrays = {f"the array of {name}": param.array for name, param in model.namedparams()}
        sides.append({**file, **arrays})
    assert sides[0].keys() == sides[1].keys()
    for name, expected in sides[0].items():
        assert_same_bits(sides[1][name], expected, name)


def train(model, optimizer):
    for step in range(5):
        x, t = batch(step)
        if step == 2:
            x[0, 0, 0, 0] = np.inf
        optimizer.update(model, x, t)
    assert optimizer.skipped
