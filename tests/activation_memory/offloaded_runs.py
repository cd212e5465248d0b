"""Runs of some networks with and without :func:`mixprec.offload`, and all that they leave behind."""

import contextlib

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.functions import reset_dropout
from mixprec.training.accumulation import Accumulated
from models import MODELS
from models.resnet import BasicBlock, ResNet

SMALLEST = 2**10  # bytes
CLASSES = 5


class Sequences(chainer.Chain):
    """An LSTM over time, with dropout; the same weights in each step."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.lstm = L.LSTM(16, 64)
            self.out = L.Linear(64, CLASSES)

    def forward(self, x, t):
        self.lstm.reset_state()
        loss = 0
        for at in range(x.shape[1]):
            h = F.dropout(self.lstm(x[:, at]), 0.2)
            loss += F.softmax_cross_entropy(self.out(h), t[:, at])
        return loss


def _images(random):
    return random.normal(size=(3, 3, 32, 32)), random.randint(0, CLASSES, 3)


def _sequences(random):
    return random.normal(size=(8, 6, 16)), random.randint(0, CLASSES, (8, 6))


NETWORKS = {
    "resnet18": (lambda: L.Classifier(MODELS["resnet18"](CLASSES)), _images),
    "narrow_resnet18": (lambda: L.Classifier(ResNet(BasicBlock, (2, 2, 2, 2), CLASSES, channels=16)), _images),
    "lstm": (Sequences, _sequences),
}


class Run:
    """A network in training.

    Args:
        name: one of :data:`NETWORKS`.
        compute: dtype for :func:`mixprec.convert`, or ``None`` for plain Chainer.
        memory: from :func:`mixprec.offload`, or ``None``.
        accumulate: number of batches in a step.
        prepare: function of the model, after the conversion.
    """

    def __init__(self, name, compute, memory=None, accumulate=1, prepare=None):
        make, self._batch = NETWORKS[name]
        np.random.seed(0)
        reset_dropout()
        self.model = make()
        x, t = self.batch(0)
        with chainer.no_backprop_mode():
            self.model(x, t)
        if compute is not None:
            mixprec.convert(self.model, (x, t), compute=compute)
        if prepare is not None:
            prepare(self.model)
        scale = mixprec.DynamicLossScale(init=2.0**8, interval=3)
        self.optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(0.01), scale).setup(self.model)
        self.optimizer.add_hook(optimizer_hooks.WeightDecay(1e-4))
        self.memory, self._accumulate = memory, accumulate
        self.seen = {}
        np.random.seed(1)
        reset_dropout()

    def batch(self, number, poisoned=False):
        """Images or sequences, and labels."""
        x, t = self._batch(np.random.RandomState(number))
        x = x.astype(np.float32)
        if poisoned:
            x.reshape(-1)[0] = np.inf
        return x, t.astype(np.int32)

    def step(self, number, poisoned=False):
        """Runs a step, and keeps its gradients."""
        batches = [self.batch(100 * number + part, poisoned) for part in range(self._accumulate)]
        with contextlib.nullcontext() if self.memory is None else self.memory:
            if self._accumulate == 1:
                self.optimizer.update(self.model, *batches[0])
            else:
                self.optimizer.update(Accumulated(self.model), batches)
        for name, param in self.model.namedparams():
            if param.grad is not None:
                self.seen[f"gradient of {name} in step {number}"] = param.grad.copy()

    def steps(self, numbers, poisoned=()):
        """Runs steps, with an evaluation after each."""
        for number in numbers:
            self.step(number, number in poisoned)
            with chainer.using_config("train", False), chainer.no_backprop_mode():
                self.seen[f"loss after step {number}"] = self.model(*self.batch(number)).array.copy()
        return self

    def results(self):
        """Everything that the steps have left, as bytes by name."""
        saved = serializers.DictionarySerializer()
        self.optimizer.serialize(saved["optimizer"])
        self.model.serialize(saved["model"])
        found = {**self.seen, **saved.target, "t": self.optimizer.t, "scale": self.optimizer.loss_scale}
        found |= {f"{name} in its dtype": param.array for name, param in self.model.namedparams()}
        return {name: np.asarray(value).tobytes() for name, value in found.items()}


def differences(found, expected):
    """Returns the names of results that differ."""
    assert found.keys() == expected.keys()
    return [name for name in expected if found[name] != expected[name]]
