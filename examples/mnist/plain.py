"""A multilayer perceptron on handwritten digits, after examples/mnist/train_mnist.py of Chainer (MIT licence)."""

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions

from mixprec.data.digit_images import load_digits


class MLP(chainer.Chain):
    """Three linear layers; (N, 64) pixels in float32 to (N, 10) scores."""

    def __init__(self, n_units, n_out):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, n_units)
            self.l2 = L.Linear(None, n_units)
            self.l3 = L.Linear(None, n_out)

    def forward(self, x):
        h = F.relu(self.l1(x))
        h = F.relu(self.l2(h))
        return self.l3(h)


def get_digits():
    """Training and test set, as ``chainer.datasets.get_mnist`` returns them; 1,500 and 297 digits of 8x8 pixels."""
    images, labels = load_digits()
    images = images.reshape(-1, 64).astype(np.float32) / 16
    digits = chainer.datasets.TupleDataset(images, labels)
    return chainer.datasets.split_dataset_random(digits, 1500, seed=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=100, help="images in a batch")
    parser.add_argument("--epoch", "-e", type=int, default=20, help="passes over the training set")
    parser.add_argument("--unit", "-u", type=int, default=1000, help="units of a hidden layer")
    parser.add_argument("--device", "-d", default="@numpy", help="a device of Chainer: @numpy, @cupy:0")
    parser.add_argument("--out", "-o", default="results/mnist", help="folder for the results")
    parser.add_argument("--resume", "-r", help="snapshot to go on from")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.epoch, args.unit = 5, 100
    np.random.seed(0)
    device = chainer.get_device(args.device)
    device.use()

    train, test = get_digits()
    train_iter = chainer.iterators.SerialIterator(train, args.batchsize)
    test_iter = chainer.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    model = L.Classifier(MLP(args.unit, 10))
    model.to_device(device)
    optimizer = chainer.optimizers.Adam()
    optimizer.setup(model)

    updater = training.updaters.StandardUpdater(train_iter, optimizer, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(extensions.Evaluator(test_iter, model, device=device))
    trainer.extend(extensions.snapshot(filename="snapshot_epoch-{.updater.epoch}"), trigger=(args.epoch, "epoch"))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/loss", "main/accuracy", "validation/main/accuracy"]
    trainer.extend(extensions.PrintReport(columns))
    if args.resume:
        chainer.serializers.load_npz(args.resume, trainer)
    trainer.run()
    chainer.serializers.save_npz(f"{args.out}/model.npz", model)


if __name__ == "__main__":
    main()
