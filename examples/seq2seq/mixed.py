"""Numbers in English to digits by an encoder and a decoder, after examples/seq2seq/seq2seq.py of Chainer (MIT licence).

``six hundred and twelve`` becomes ``6 1 2``. The test set has numbers that the training set has not.
"""

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions

import mixprec

NAMES = (
    "<eos> zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand and"
)
SOURCE, TARGET = NAMES.split(), ["<eos>", *"0123456789"]
ONES, TENS = SOURCE[1:21], SOURCE[21:29]
WORDS, DIGITS = ({word: index for index, word in enumerate(words)} for words in (SOURCE, TARGET))
EOS = 0


def in_words(number):
    """The words of a number below 10,000."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            head, rest = divmod(number, size)
            joint = ["and"] if 0 < rest < 100 else []
            return [*in_words(head), name, *joint, *(in_words(rest) if rest else [])]
    if number < len(ONES):
        return [ONES[number]]
    tens, ones = divmod(number, 10)
    return [TENS[tens - 2], *([ONES[ones]] if ones else [])]


def get_numbers(n_train, n_test):
    """Pairs of int32 arrays: words of a number, its digits; both as long as they are."""
    numbers = np.random.RandomState(0).permutation(10000)[: n_train + n_test]
    pairs = [
        (
            np.array([WORDS[word] for word in in_words(number)], np.int32),
            np.array([DIGITS[digit] for digit in str(number)], np.int32),
        )
        for number in numbers
    ]
    return pairs[:n_train], pairs[n_train:]


def sequence_embed(embed, xs):
    """Embeds sequences of several lengths at once."""
    ends = np.cumsum([len(x) for x in xs])[:-1]
    return F.split_axis(embed(F.concat(xs, axis=0)), ends, axis=0)


class Seq2seq(chainer.Chain):
    """An LSTM that reads, and one that writes, without attention."""

    def __init__(self, n_layers, n_source, n_target, n_units):
        super().__init__()
        with self.init_scope():
            self.embed_x = L.EmbedID(n_source, n_units)
            self.embed_y = L.EmbedID(n_target, n_units)
            self.encoder = L.NStepLSTM(n_layers, n_units, n_units, 0.1)
            self.decoder = L.NStepLSTM(n_layers, n_units, n_units, 0.1)
            self.W = L.Linear(n_units, n_target)

    def forward(self, xs, ys):
        """Loss of lists of sequences, as the mean over sequences."""
        xs = [x[::-1] for x in xs]
        eos = self.xp.array([EOS], np.int32)
        ys_in = [F.concat([eos, y], axis=0) for y in ys]
        ys_out = [F.concat([y, eos], axis=0) for y in ys]
        hx, cx, _ = self.encoder(None, None, sequence_embed(self.embed_x, xs))
        _, _, os = self.decoder(hx, cx, sequence_embed(self.embed_y, ys_in))
        scores, targets = self.W(F.concat(os, axis=0)), F.concat(ys_out, axis=0)
        loss = F.sum(F.softmax_cross_entropy(scores, targets, reduce="no")) / len(xs)
        n_words = len(targets)
        chainer.report({"loss": loss, "perplexity": self.xp.exp(loss.array * len(xs) / n_words)}, self)
        return loss

    def translate(self, xs, max_length=8):
        """The likeliest next word again and again; a list of int32 arrays without ``<eos>``."""
        with chainer.no_backprop_mode(), chainer.using_config("train", False):
            xs = [x[::-1] for x in xs]
            h, c, _ = self.encoder(None, None, sequence_embed(self.embed_x, xs))
            ys = self.xp.full(len(xs), EOS, np.int32)
            result = []
            for _ in range(max_length):
                h, c, ys = self.decoder(h, c, F.split_axis(self.embed_y(ys), len(xs), axis=0))
                ys = self.xp.argmax(self.W(F.concat(ys, axis=0)).array, axis=1).astype(np.int32)
                result.append(ys)
        rows = chainer.get_device("@numpy").send(self.xp.stack(result, axis=1))
        return [row[: np.argmax(np.append(row, EOS) == EOS)] for row in rows]


@chainer.dataset.converter()
def convert(batch, device):
    """Lists of sequences, in place of one array."""
    xs, ys = zip(*batch, strict=True)
    return {"xs": [device.send(x) for x in xs], "ys": [device.send(y) for y in ys]}


class ExactMatches(extensions.Evaluator):
    """Share of numbers of which all digits are right."""

    def evaluate(self):
        right = count = 0
        iterator = self.get_iterator("main")
        iterator.reset()
        for batch in iterator:
            wanted = [y for _, y in batch]
            found = self.get_target("main").translate(self.converter(batch, self.device)["xs"])
            right += sum(np.array_equal(y, each) for y, each in zip(wanted, found, strict=True))
            count += len(batch)
        return {f"{self.name}/main/exact": right / count}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=64, help="sequences in a batch")
    parser.add_argument("--epoch", "-e", type=int, default=6, help="passes over the training set")
    parser.add_argument("--unit", "-u", type=int, default=128, help="units of a layer")
    parser.add_argument("--layer", "-l", type=int, default=1, help="layers of the encoder, and of the decoder")
    parser.add_argument("--device", "-d", default="@numpy", help="a device of Chainer: @numpy, @cupy:0")
    parser.add_argument("--out", "-o", default="results/seq2seq", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    args = parser.parse_args()
    n_train, n_test = 4000, 500
    if args.quick:
        n_train, n_test, args.epoch, args.unit = 2000, 100, 3, 64
    np.random.seed(0)
    device = chainer.get_device(args.device)
    device.use()

    train, test = get_numbers(n_train, n_test)
    train_iter = chainer.iterators.SerialIterator(train, args.batchsize)
    test_iter = chainer.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    model = Seq2seq(args.layer, len(WORDS), len(DIGITS), args.unit)
    model.to_device(device)
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam(0.005))
    optimizer.setup(model)
    mixprec.convert(model)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(5))

    updater = training.updaters.StandardUpdater(train_iter, optimizer, converter=convert, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(ExactMatches(test_iter, model, converter=convert, device=device), name="validation")
    trainer.extend(extensions.ExponentialShift("alpha", 0.8), trigger=(1, "epoch"))
    trainer.extend(mixprec.training.LossScaleLog(optimizer))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "main/perplexity", "validation/main/exact", "loss_scale"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.run()
    chainer.serializers.save_npz(f"{args.out}/model.npz", model)

    sources = [x for x, _ in test[:5]]
    for source, digits in zip(sources, model.translate([device.send(x) for x in sources]), strict=True):
        print(" ".join(SOURCE[word] for word in source), "->", " ".join(TARGET[digit] for digit in digits))


if __name__ == "__main__":
    main()
