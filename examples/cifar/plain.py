"""A small VGG on a folder of images, after examples/cifar/train_cifar.py of Chainer (MIT licence)."""

import argparse
import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions
from images import get_images

from mixprec.data.digit_images import make_digits


class Block(chainer.Chain):
    """Convolution, batch normalization and ReLU; (N, C, H, W) to (N, out_channels, H, W)."""

    def __init__(self, out_channels):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, out_channels, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(out_channels)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class VGG(chainer.Chain):
    """Three stages of two blocks; (N, 3, 32, 32) to (N, n_classes) scores."""

    def __init__(self, n_classes, width):
        super().__init__()
        with self.init_scope():
            self.blocks = chainer.ChainList(*(Block(width * factor) for factor in (1, 1, 2, 2, 4, 4)))
            self.fc1 = L.Linear(None, 16 * width, nobias=True)
            self.bn_fc1 = L.BatchNormalization(16 * width)
            self.fc2 = L.Linear(None, n_classes)

    def forward(self, x):
        h = x
        for i, block in enumerate(self.blocks):
            h = block(h)
            if i % 2:
                h = F.dropout(F.max_pooling_2d(h, 2), 0.1)
        h = F.dropout(F.relu(self.bn_fc1(self.fc1(h))), 0.5)
        return self.fc2(h)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=64, help="images in a batch")
    parser.add_argument("--data", default="data/digits", help="folder with train/CLASS/*.jpg and val/CLASS/*.jpg")
    parser.add_argument("--device", "-d", default="@numpy", help="a device of Chainer: @numpy, @cupy:0")
    parser.add_argument("--epoch", "-e", type=int, default=6, help="passes over the training set")
    parser.add_argument("--learnrate", "-l", type=float, default=0.05, help="learning rate of the first epochs")
    parser.add_argument("--out", "-o", default="results/cifar", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    args = parser.parse_args()
    if args.quick:
        args.epoch, args.width = 2, 4
    np.random.seed(0)
    device = chainer.get_device(args.device)
    device.use()
    if not os.path.exists(args.data):
        make_digits(args.data)  # handwritten digits of 40x40 pixels as JPEG files, which come with mixprec

    train, val = f"{args.data}/train", f"{args.data}/val"
    train_iter = chainer.iterators.MultiprocessIterator(get_images(train, True), args.batchsize, n_processes=2)
    val_iter = chainer.iterators.MultiprocessIterator(get_images(val, False), args.batchsize, False, False, 2)

    model = L.Classifier(VGG(len(os.listdir(train)), args.width))
    model.to_device(device)
    optimizer = chainer.optimizers.MomentumSGD(args.learnrate)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(5e-4))

    updater = training.updaters.StandardUpdater(train_iter, optimizer, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(extensions.Evaluator(val_iter, model, device=device))
    trainer.extend(extensions.ExponentialShift("lr", 0.5), trigger=(2, "epoch"))
    trainer.extend(extensions.snapshot(filename="snapshot_epoch-{.updater.epoch}"), trigger=(args.epoch, "epoch"))
    trainer.extend(extensions.observe_lr())
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/loss", "main/accuracy", "validation/main/accuracy", "lr"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.run()
    chainer.serializers.save_npz(f"{args.out}/model.npz", model)


if __name__ == "__main__":
    main()
