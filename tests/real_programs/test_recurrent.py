"""Three recurrent programs that people own, written anew and tiny: converted they learn as plain Chainer does.

A language model after Chainer's example ptb, with truncated backpropagation by an updater of its own; a translator
after its example seq2seq, with batches of unequal length; and a speech recognizer after ESPnet: convolutions, BLSTMs
that drop every second frame, and CTC. There is no dropout, whose random numbers are others in a converted model.
"""

import itertools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from tests.cases import first

WORDS, UNITS, BATCH, STEPS = 12, 16, 6, 30


class LanguageModel(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(WORDS, UNITS)
            self.l1, self.l2 = L.LSTM(UNITS, UNITS), L.LSTM(UNITS, UNITS)
            self.out = L.Linear(UNITS, WORDS)

    def forward(self, x, t):
        return F.softmax_cross_entropy(self.out(self.l2(self.l1(self.embed(x)))), t)


def train_in_windows(model, optimizer, length=5):
    """The state of a window is that of the end of the window before."""
    words = np.arange(2 * STEPS * length + BATCH).astype("i") ** 2 % WORDS  # the square repeats soon
    for at in range(0, STEPS * length, length):
        loss = sum(model(*(words[i : i + BATCH] for i in (at + step, at + step + 1))) for step in range(length))
        model.cleargrads()
        (optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss).backward()
        loss.unchain_backward()
        optimizer.update()
        yield float(loss.array) / length


class Translator(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed_x, self.embed_y = L.EmbedID(WORDS, UNITS), L.EmbedID(WORDS, UNITS)
            self.encoder, self.decoder = L.NStepLSTM(2, UNITS, UNITS, 0.0), L.NStepLSTM(2, UNITS, UNITS, 0.0)
            self.out = L.Linear(UNITS, WORDS)

    def forward(self, xs, ys):
        ends = np.cumsum([len(x) for x in xs])[:-1]
        shifted = [np.append(np.zeros(1, "i"), y[:-1]) for y in ys]
        exs, eys = (
            F.split_axis(embed(np.concatenate(words)), ends, 0)
            for embed, words in ((self.embed_x, [x[::-1] for x in xs]), (self.embed_y, shifted))
        )
        h, c, _ = self.encoder(None, None, exs)
        _, _, hs = self.decoder(h, c, eys)
        return F.softmax_cross_entropy(self.out(F.concat(hs, axis=0)), np.concatenate(ys))


def sentences(random):
    xs = [random.randint(1, WORDS, random.randint(1, 6)).astype("i") for _ in range(BATCH)]
    return xs, [x % (WORDS - 1) + 1 for x in xs]


class Recognizer(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1, self.conv2 = L.Convolution2D(1, 8, 3, pad=1), L.Convolution2D(8, 8, 3, pad=1)
            self.rnn1, self.bt1 = L.NStepBiLSTM(1, 16, UNITS, 0.0), L.Linear(2 * UNITS, UNITS)
            self.rnn2, self.bt2 = L.NStepBiLSTM(1, UNITS, UNITS, 0.0), L.Linear(2 * UNITS, UNITS)
            self.out = L.Linear(UNITS, 4)

    def forward(self, xs, ys):
        h = F.relu(self.conv2(F.relu(self.conv1(F.pad_sequence(xs)[:, None]))))
        h = F.swapaxes(F.max_pooling_2d(h, 2, stride=2), 1, 2)
        h = h.reshape(*h.shape[:2], -1)
        hs = [h[i, : -(-len(x) // 2)] for i, x in enumerate(xs)]
        for rnn, project, step in ((self.rnn1, self.bt1, 2), (self.rnn2, self.bt2, 1)):
            hs = [h[::step] for h in rnn(None, None, hs)[2]]
            hs = F.split_axis(project(F.vstack(hs)), np.cumsum([len(h) for h in hs])[:-1], axis=0)
        frames = F.separate(self.out(F.tanh(F.pad_sequence(hs)), n_batch_axes=2), axis=1)
        lengths = [np.array([len(each) for each in batch], "i") for batch in (hs, ys)]
        return F.connectionist_temporal_classification(frames, F.pad_sequence(ys, padding=-1).array, 0, *lengths)


def utterances(random):
    sounds = 3 * np.random.RandomState(5).normal(size=(4, 8, 4)).astype("f")
    ys = [random.permutation([1, 2, 3])[: random.randint(1, 3)].astype("i") for _ in range(BATCH)]
    ys.sort(key=len, reverse=True)
    return [np.concatenate(sounds[y]) + 0.3 * random.normal(size=(8 * len(y), 4)).astype("f") for y in ys], ys


def train_by_update(batch):
    def train(model, optimizer):
        random = np.random.RandomState(0)
        for _ in range(STEPS):
            losses = []
            optimizer.update(lambda *given: losses.append(model(*given)) or losses[0], *batch(random))  # noqa: B023
            yield float(losses[0].array)

    return train


PROGRAMS = {
    "ptb": (LanguageModel, lambda: chainer.optimizers.SGD(0.5), train_in_windows),
    "seq2seq": (Translator, lambda: chainer.optimizers.Adam(0.01), train_by_update(sentences)),
    "espnet": (Recognizer, lambda: chainer.optimizers.Adam(0.01), train_by_update(utterances)),
}


def losses_of(program, compute):
    model, rule, train = PROGRAMS[program]
    np.random.seed(0)
    model, optimizer = model(), rule()
    if compute:
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, loss_scale=2.0**10)
        mixprec.convert(model, compute=compute)
    optimizer.setup(model).add_hook(chainer.optimizer_hooks.GradientClipping(5))
    return np.array(list(train(model, optimizer)))


CASES = [(name, "float16") for name in PROGRAMS] + list(itertools.product(PROGRAMS, ["bfloat16", "float32"]))


@pytest.mark.parametrize(("program", "compute"), first(2, CASES))
def test_learns_as_plain_chainer_does(program, compute):
    expected, found = losses_of(program, None), losses_of(program, compute)
    assert expected[-5:].mean() < 0.9 * expected[0]
    bound = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 6e-2}[compute]  # of 16 bits: 2-3 x the worst
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
