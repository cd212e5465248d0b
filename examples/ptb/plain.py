"""An LSTM language model on characters of Python's help texts, after examples/ptb of Chainer (MIT licence)."""

import argparse
import pydoc_data.topics

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions


class RNNForLM(chainer.Chain):
    """Two layers of LSTM; (N,) characters to (N, n_vocab) scores of the next ones."""

    def __init__(self, n_vocab, n_units):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(n_vocab, n_units)
            self.l1 = L.LSTM(n_units, n_units)
            self.l2 = L.LSTM(n_units, n_units)
            self.l3 = L.Linear(n_units, n_vocab)

    def reset_state(self):
        self.l1.reset_state()
        self.l2.reset_state()

    def forward(self, x):
        h0 = self.embed(x)
        h1 = self.l1(F.dropout(h0, 0.1))
        h2 = self.l2(F.dropout(h1, 0.1))
        return self.l3(F.dropout(h2, 0.1))


class ParallelSequentialIterator(chainer.dataset.Iterator):
    """Reads a text at ``batch_size`` places at once; a batch is characters and the ones after them."""

    def __init__(self, dataset, batch_size, repeat=True):
        super().__init__()
        self.dataset, self.batch_size, self.repeat = dataset, batch_size, repeat
        self.offsets = [i * len(dataset) // batch_size for i in range(batch_size)]
        self.reset()

    def reset(self):
        self.epoch, self.iteration, self.is_new_epoch = 0, 0, False

    def __next__(self):
        length = len(self.dataset)
        if not self.repeat and self.iteration * self.batch_size >= length:
            raise StopIteration
        now = self.get_words()
        self.iteration += 1
        epoch = self.iteration * self.batch_size // length
        self.is_new_epoch = self.epoch < epoch
        self.epoch = epoch
        return list(zip(now, self.get_words(), strict=True))

    @property
    def epoch_detail(self):
        return self.iteration * self.batch_size / len(self.dataset)

    def get_words(self):
        return [self.dataset[(offset + self.iteration) % len(self.dataset)] for offset in self.offsets]

    def serialize(self, serializer):
        self.iteration = serializer("iteration", self.iteration)
        self.epoch = serializer("epoch", self.epoch)


class BPTTUpdater(training.updaters.StandardUpdater):
    """Backpropagation through time, truncated after ``bprop_len`` characters."""

    def __init__(self, train_iter, optimizer, bprop_len, device):
        super().__init__(train_iter, optimizer, device=device)
        self.bprop_len = bprop_len

    def update_core(self):
        loss = 0
        optimizer = self.get_optimizer("main")
        for _ in range(self.bprop_len):
            x, t = self.converter(self.get_iterator("main").next(), self.device)
            loss += optimizer.target(x, t)
        optimizer.target.cleargrads()
        loss.backward()
        loss.unchain_backward()
        optimizer.update()


def get_text(n):
    """Training and validation text, as numbers of characters, and how many different ones there are."""
    text = "".join(pydoc_data.topics.topics[topic] for topic in sorted(pydoc_data.topics.topics))[: n * 11 // 10]
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    ids = np.array([numbers[character] for character in text], np.int32)
    return ids[:n], ids[n:], len(characters)


def compute_perplexity(result):
    result["perplexity"] = float(np.exp(result["main/loss"]))
    if "validation/main/loss" in result:
        result["val_perplexity"] = float(np.exp(result["validation/main/loss"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=50, help="places at which the text is read")
    parser.add_argument("--bproplen", "-l", type=int, default=35, help="characters that gradients go back")
    parser.add_argument("--epoch", "-e", type=int, default=3, help="passes over the text")
    parser.add_argument("--device", "-d", default="@numpy", help="a device of Chainer: @numpy, @cupy:0")
    parser.add_argument("--gradclip", "-c", type=float, default=5, help="largest norm of the gradients")
    parser.add_argument("--out", "-o", default="results/ptb", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--unit", "-u", type=int, default=128, help="units of a layer")
    args = parser.parse_args()
    characters = 100_000
    if args.quick:
        args.epoch, args.unit, characters = 2, 32, 15_000
    np.random.seed(0)
    device = chainer.get_device(args.device)
    device.use()

    train, val, n_vocab = get_text(characters)
    train_iter = ParallelSequentialIterator(train, args.batchsize)
    val_iter = ParallelSequentialIterator(val, args.batchsize, repeat=False)

    model = L.Classifier(RNNForLM(n_vocab, args.unit))
    model.compute_accuracy = False  # only the perplexity is wanted
    model.to_device(device)
    optimizer = chainer.optimizers.Adam(0.005)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(args.gradclip))

    updater = BPTTUpdater(train_iter, optimizer, args.bproplen, device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    eval_model = model.copy()  # shares the parameters, and has states of its own
    eval_model.predictor = model.predictor.copy()
    trainer.extend(
        extensions.Evaluator(
            val_iter, eval_model, device=device, eval_hook=lambda _: eval_model.predictor.reset_state()
        )
    )
    trainer.extend(extensions.LogReport(postprocess=compute_perplexity, trigger=(1, "epoch")))
    trainer.extend(extensions.PrintReport(["epoch", "iteration", "perplexity", "val_perplexity"]))
    trainer.extend(extensions.snapshot(filename="snapshot_epoch-{.updater.epoch}"), trigger=(args.epoch, "epoch"))
    trainer.run()
    chainer.serializers.save_npz(f"{args.out}/model.npz", model)


if __name__ == "__main__":
    main()
