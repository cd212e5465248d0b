"""Chainer's example text_classification, written anew: sentences of unequal length, two encoders, a Trainer.

The converter sends lists of arrays, the evaluator reports the accuracy of new sentences.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import extensions

import mixprec
from tests.cases import first

WORDS, UNITS, CLASSES = 30, 16, 2


def embed_sequences(embed, xs):
    ends = np.cumsum([len(x) for x in xs[:-1]])
    return F.split_axis(embed(F.concat(xs, axis=0)), ends, axis=0) if len(xs) > 1 else (embed(xs[0]),)


class RNNEncoder(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(WORDS, UNITS, initialW=chainer.initializers.Uniform(0.25))
            self.encoder = L.NStepLSTM(1, UNITS, UNITS, 0.1)

    def forward(self, xs):
        last, _, _ = self.encoder(None, None, embed_sequences(self.embed, xs))
        return last[-1]


class CNNEncoder(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(WORDS, UNITS, ignore_label=-1, initialW=chainer.initializers.Uniform(0.25))
            self.cnns = chainer.ChainList(*(L.Convolution2D(UNITS, 8, (w, 1), pad=(w - 1, 0)) for w in (2, 3)))

    def forward(self, xs):
        x = F.pad_sequence(xs, padding=-1)
        block = F.transpose(F.dropout(self.embed(x), 0.1), (0, 2, 1))[:, :, :, None]
        return F.concat([F.relu(F.max(cnn(block), axis=2)) for cnn in self.cnns], axis=1)[:, :, 0]


class TextClassifier(chainer.Chain):
    def __init__(self, encoder):
        super().__init__()
        with self.init_scope():
            self.encoder, self.output = encoder, L.Linear(None, CLASSES)

    def forward(self, xs, ys):
        concat_outputs = self.output(F.dropout(self.encoder(xs), 0.1))
        concat_truths = F.concat(ys, axis=0)
        loss = F.softmax_cross_entropy(concat_outputs, concat_truths)
        accuracy = F.accuracy(concat_outputs, concat_truths)
        chainer.reporter.report({"loss": loss, "accuracy": accuracy}, self)
        return loss


@chainer.dataset.converter()
def convert_seq(batch, device=None):
    return {"xs": [device.send(x) for x, _ in batch], "ys": [device.send(y) for _, y in batch]}


def sentences(number, seed):
    """Words at random; the class says whether one of the first five words occurs."""
    random = np.random.RandomState(seed)
    found = []
    for _ in range(number):
        words, label = random.randint(5, WORDS, random.randint(3, 9)), random.randint(2)
        if label:
            words[random.randint(len(words))] = random.randint(5)
        found.append((words.astype("i"), np.array([label], "i")))
    return found


@pytest.mark.parametrize("compute", first(0, ["float16", None, "bfloat16"], 1))
@pytest.mark.parametrize("encoder", [RNNEncoder, CNNEncoder])
def test_text_classifier_learns(encoder, compute, tmp_path):
    np.random.seed(0)
    model = TextClassifier(encoder())
    optimizer = chainer.optimizers.Adam(0.02)
    if compute:
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))
    if compute:
        mixprec.convert(model, compute=compute)
    train = chainer.iterators.SerialIterator(sentences(160, 0), 20)
    test = chainer.iterators.SerialIterator(sentences(100, 1), 50, repeat=False, shuffle=False)
    updater = chainer.training.updaters.StandardUpdater(train, optimizer, converter=convert_seq, device="@numpy")
    trainer = chainer.training.Trainer(updater, (12, "epoch"), out=tmp_path)
    trainer.extend(extensions.Evaluator(test, model, converter=convert_seq, device="@numpy"))
    trainer.extend(log := extensions.LogReport())
    trainer.run()
    first, last = log.log[0], log.log[-1]
    assert last["main/loss"] < 0.6 * first["main/loss"]
    assert last["validation/main/accuracy"] > 0.8
