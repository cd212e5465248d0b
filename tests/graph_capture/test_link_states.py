"""Captured training of links that keep a state from one call to the next, on the stand-in device."""

import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.base import announcements
from mixprec.functions import reset_dropout
from tests.graph_capture.captured_runs import REQUIRED
from tests.stand_ins import graph_array
from tests.stand_ins.capture_sides import HOST, device, host  # noqa: F401  (fixtures)

WORDS, UNITS, STEPS = 11, 8, 3


class Language(chainer.Chain):
    """The network of Chainer's example ``ptb``."""

    def __init__(self, kind):
        super().__init__()
        with self.init_scope():
            self.embed = L.Linear(WORDS, UNITS)  # EmbedID's gradient is of the host on the stand-in
            self.rnn1, self.rnn2 = kind(UNITS, UNITS), kind(UNITS, UNITS)
            self.out = L.Linear(UNITS, WORDS)

    def reset_state(self):
        self.rnn1.reset_state()
        self.rnn2.reset_state()

    def forward(self, x):
        return self.out(F.dropout(self.rnn2(self.rnn1(self.embed(x))), 0.3))


def window(number, size=4):
    words = np.random.RandomState(number).randint(0, WORDS, (STEPS + 1, size)).astype(np.int32)
    return graph_array.array(np.eye(WORDS, dtype=np.float32)[words[:-1]]), graph_array.array(words[1:])


class Training:
    def __init__(self, capture, kind=L.LSTM, compute="float16"):
        np.random.seed(0)
        reset_dropout()
        self.model = L.Classifier(Language(kind))
        if compute:
            mixprec.convert(self.model, compute=compute)
        graph_array.send(self.model)
        scale = mixprec.DynamicLossScale(init=2.0**7, interval=5)
        self.optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam(), loss_scale=scale)
        self.optimizer.setup(self.model)
        self.step = None if capture is None else mixprec.capture(self.optimizer, self.lossfun, **capture)
        np.random.seed(1)
        reset_dropout()
        self.losses = []

    def lossfun(self, words, targets):
        return sum(self.model(x, t) for x, t in zip(words, targets, strict=True))

    def run(self, numbers, size=4):
        for number in numbers:
            batch = window(number, size)
            if self.step:
                loss = self.step(*batch)
            else:
                with HOST.eagerly():
                    loss = self.lossfun(*batch)
                    self.model.cleargrads()
                    self.optimizer.scale_loss(loss).backward()
                    loss.unchain_backward()
                    self.optimizer.update()
            self.losses.append(graph_array.receive(loss.array))


def zeros(shape, dtype):
    array = graph_array.new(shape, dtype)
    array[...] = 0
    return array


@pytest.fixture(autouse=True)
def stand_in(host, monkeypatch):  # noqa: F811
    monkeypatch.setattr(announcements, "_said", set())
    for kind in (L.LSTM, L.StatefulPeepholeLSTM):  # NumPy's zeros are on the host
        monkeypatch.setattr(kind, "xp", types.SimpleNamespace(zeros=zeros), raising=False)


def test_it():
    for compute in ("float16", "bfloat16"):
        t = Training({}, L.LSTM, compute)
        t.run(range(10))
        print(t.step.report(), t.step.why_not)
        print(t.losses)
        t = Training(None, L.LSTM, compute)
        t.run(range(10))
        print(t.losses)
