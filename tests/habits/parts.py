"""What the habits are made of: small networks, and their training."""

import chainer
import chainer.functions as F
import chainer.links as L
from chainer import optimizers

from tests.habits.running import STEPS, T


def mlp(out=3):
    return chainer.Sequential(L.Linear(4, 8), F.tanh, L.Linear(8, out))


class Net(chainer.Chain):
    """Named links, and a function of (self, x)."""

    def __init__(self, function, **links):
        super().__init__()
        self.function = function
        with self.init_scope():
            for name, link in links.items():
                setattr(self, name, link)

    def forward(self, *args):
        return self.function(self, *args)


def train(run, net, *args, rule=None, steps=STEPS):
    """Trains a network of three classes, or one that returns a loss."""

    def loss():
        y = net(*args)
        return y if y.size == 1 else F.softmax_cross_entropy(y, T)

    return run.fit(run.setup(rule or optimizers.MomentumSGD(0.1), net), loss, steps=steps)


def classifier(run, rule=None, hooks=()):
    model = L.Classifier(mlp())
    return model, run.setup(rule or optimizers.SGD(0.3), model, hooks)
