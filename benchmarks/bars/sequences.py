"""The tasks on sequences: a network of Chainer for each, as users write it, with its batch of noise.

They have ``optimizer`` (its name in Chainer and in PyTorch), ``batch`` (sequences by default) and ``unit`` (what is
counted).
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

VOCABULARY, UNITS, LAYERS = 10_000, 200, 2  # of lm and seq2seq
STEPS, DROPOUT = 35, 0.5  # of lm
WORDS, DROPOUT_BETWEEN = (8, 30), 0.1  # of seq2seq: the fewest and the most in a sentence
FRAMES, INPUTS, HIDDEN, CLASSES = (60, 119), 40, 128, 50  # of blstm


class LanguageModel(chainer.Chain):
    """Calls layers of ``L.LSTM`` word by word; from words (STEPS + 1, N) to the sum over time of mean losses."""

    optimizer, batch, unit = "SGD", 20, "words"

    def __init__(self):
        super().__init__(embed=L.EmbedID(VOCABULARY, UNITS), out=L.Linear(UNITS, VOCABULARY))
        with self.init_scope():
            self.first, self.second = L.LSTM(UNITS, UNITS), L.LSTM(UNITS, UNITS)

    @staticmethod
    def noise(rng, count):
        """Returns the arguments for so many sequences, and the number of words."""
        return (_words(rng, STEPS + 1, count),), STEPS * count

    def forward(self, words):
        loss = 0
        for step in range(STEPS):
            h = self.first(F.dropout(self.embed(words[step]), DROPOUT))
            h = self.second(F.dropout(h, DROPOUT))
            loss += F.softmax_cross_entropy(self.out(F.dropout(h, DROPOUT)), words[step + 1])
        self.first.reset_state()  # here, because states would hold the graph until the next step
        self.second.reset_state()
        return loss


class Translation(chainer.Chain):
    """Encoder and decoder of ``L.NStepLSTM``; from lists of source, read and predicted words to the mean loss."""

    optimizer, batch, unit = "Adam", 32, "words"

    def __init__(self):
        super().__init__(out=L.Linear(UNITS, VOCABULARY))
        with self.init_scope():
            self.source, self.target = L.EmbedID(VOCABULARY, UNITS), L.EmbedID(VOCABULARY, UNITS)
            self.encoder, self.decoder = (L.NStepLSTM(LAYERS, UNITS, UNITS, DROPOUT_BETWEEN) for _ in range(2))

    @staticmethod
    def noise(rng, count):
        """Returns the arguments for so many pairs, and the number of words on both sides."""
        first, second = rng.randint(WORDS[0], WORDS[1] + 1, size=(2, count))
        sides = [[_words(rng, length) for length in lengths] for lengths in (first, second, second)]
        return sides, int(first.sum() + second.sum())

    def forward(self, sources, read, predicted):
        h, c, _ = self.encoder(None, None, _embedded(self.source, sources))
        return _loss(self.out, self.decoder(h, c, _embedded(self.target, read))[-1], predicted)


class FrameClassifier(chainer.Chain):
    """Layers of ``L.NStepBiLSTM``; from lists of utterances (frames, INPUTS) and of labels to the mean loss.

    The loss is not CTC: it is the same Python code in all rows of Chainer, and would take most of the time.
    """

    optimizer, batch, unit = "Adam", 16, "frames"

    def __init__(self):
        super().__init__(layers=L.NStepBiLSTM(LAYERS, INPUTS, HIDDEN, 0.0), out=L.Linear(2 * HIDDEN, CLASSES))

    @staticmethod
    def noise(rng, count):
        """Returns the arguments for so many utterances, and the number of frames."""
        lengths = rng.randint(FRAMES[0], FRAMES[1] + 1, size=count)
        frames = [rng.normal(size=(length, INPUTS)).astype(np.float32) for length in lengths]
        return (frames, [_words(rng, length) % CLASSES for length in lengths]), int(lengths.sum())

    def forward(self, utterances, labels):
        return _loss(self.out, self.layers(None, None, utterances)[-1], labels)


def _words(rng, *shape):
    return rng.randint(VOCABULARY, size=shape).astype(np.int32)


def _embedded(embed, sentences):
    ends = np.cumsum([len(words) for words in sentences])[:-1]
    return F.split_axis(embed(F.concat(sentences, axis=0)), ends, axis=0)


def _loss(out, hidden, labels):
    return F.softmax_cross_entropy(out(F.concat(hidden, axis=0)), F.concat(labels, axis=0))


SEQUENCES = {"lm": LanguageModel, "seq2seq": Translation, "blstm": FrameClassifier}


def batch_of(task, count):
    """Returns the arguments of a network, the same each time, and the number of words or frames in them.

    Args:
        task: name of the task.
        count: number of sequences.
    """
    return SEQUENCES[task].noise(np.random.RandomState(0), count)
