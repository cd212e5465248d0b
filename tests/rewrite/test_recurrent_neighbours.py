"""Converted recurrent networks beside the other parts of the library: which of them take the nodes, and which do not."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.functions import reset_dropout
from tests.stand_ins.twin_transport import wrapped

WORDS, COLUMNS, UNITS, CLASSES = 11, 6, 9, 5
LINKS = ["LSTM", "GRU", "NStepLSTM", "NStepBiGRU"]
every_link = pytest.mark.parametrize("link", LINKS)
every_dtype = pytest.mark.parametrize("compute", ["float32", "float16"])


class Net(chainer.Chain):
    """Words, a recurrent link with dropout, and a layer that a cell's program calls in each step."""

    def __init__(self, link):
        super().__init__()
        self.is_stack = link.startswith("NStep")
        with self.init_scope():
            self.embed = L.EmbedID(WORDS, COLUMNS)
            if self.is_stack:
                self.rnn = getattr(L, link)(2, COLUMNS, UNITS, 0.3)
            else:
                self.rnn = getattr(L, link)(COLUMNS, UNITS)
            self.out = L.Linear(UNITS * getattr(self.rnn, "direction", 1), CLASSES)

    def states(self, xs):
        if not self.is_stack:
            self.rnn.reset_state()
            return [F.dropout(self.rnn(self.embed(step)), 0.2) for step in np.stack([x[:4] for x in xs], axis=1)]
        rows = F.split_axis(self.embed(np.concatenate(xs)), np.cumsum([len(x) for x in xs])[:-1], 0)
        return [F.concat(self.rnn(*[None] * (1 + (self.rnn.n_cells == 2)), rows)[-1], axis=0)]

    def forward(self, xs):
        return sum(F.sum(F.log_softmax(self.out(state))[:, 0]) for state in self.states(xs)) * -0.1


def words(seed, lengths=(4, 7, 4, 5)):
    random = np.random.RandomState(seed)
    return [random.randint(0, WORDS, length).astype(np.int32) for length in lengths]


def built(link, compute, rule=None, make=mixprec.MixedPrecisionOptimizer, prepare=None, **settings):
    """Returns a converted model and its optimizer, with the hooks that change gradients in place."""
    np.random.seed(0)
    model = Net(link)
    optimizer = make(rule or optimizers.Adam(0.01), 2.0**8, **settings).setup(model)
    mixprec.convert(model, compute=compute)
    for hook in (optimizer_hooks.WeightDecay(1e-3), optimizer_hooks.GradientClipping(2.0)):
        optimizer.add_hook(hook)
    if prepare is not None:
        prepare(model)
    np.random.seed(1)
    reset_dropout()
    return model, optimizer


def train(model, optimizer, steps=3, lossfun=None, batch=words):
    """Returns gradients, losses, parameters and the states of the optimizer, by name."""
    found = {}
    for step in range(steps):
        loss = []
        optimizer.update(lambda step=step, loss=loss: loss.append((lossfun or model)(batch(step))) or loss[0])
        found[f"loss {step}"] = loss[0].array.copy()
        found |= {f"gradient of {name} {step}": param.grad.copy() for name, param in model.namedparams()}
    serializers.DictionarySerializer(found).save(optimizer)
    return found | {name: param.array for name, param in model.namedparams()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
