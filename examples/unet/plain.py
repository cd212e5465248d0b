"""Shapes are found in noisy images by a U-Net (Ronneberger et al., 2015), in the style of Chainer's examples.

The images are generated: circles, squares and triangles in colours of their own, on a background that is uneven.
"""

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions

CLASSES = ("background", "circle", "square", "triangle")


def get_shapes(n, size, seed):
    """n pairs of an image, float32 (3, size, size), and the classes of its pixels, int32 (size, size)."""
    random = np.random.RandomState(seed)
    y, x = np.mgrid[:size, :size]
    pairs = []
    for _ in range(n):
        label = np.zeros((size, size), np.int32)
        slope = random.uniform(-0.3, 0.3, (3, 2)) / size
        image = slope[:, :1, None] * y + slope[:, 1:, None] * x
        for _ in range(random.randint(1, 3)):
            radius = random.uniform(0.15, 0.25) * size
            row, column = random.uniform(radius, size - radius, 2)
            down, right = y - row, abs(x - column)
            masks = [
                down**2 + right**2 < radius**2,
                np.maximum(abs(down), right) < 0.85 * radius,
                (abs(down) < radius) & (right < (down + radius) / 2),
            ]
            kind = random.randint(3)
            label[masks[kind]] = kind + 1
            image[:, masks[kind]] = random.choice([-1, 1], (3, 1)) * random.uniform(0.5, 1, (3, 1))
        pairs.append(((image + random.normal(0, 0.1, image.shape)).astype(np.float32), label))
    return pairs


class Block(chainer.Chain):
    """Two convolutions with batch normalization and ReLU."""

    def __init__(self, n_out):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(None, n_out, 3, pad=1, nobias=True)
            self.bn1 = L.BatchNormalization(n_out)
            self.conv2 = L.Convolution2D(n_out, n_out, 3, pad=1, nobias=True)
            self.bn2 = L.BatchNormalization(n_out)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)))


class UNet(chainer.Chain):
    """(N, 3, H, W) images to (N, n_classes, H, W) scores; H and W are multiples of 4."""

    def __init__(self, n_classes, n_units):
        super().__init__()
        with self.init_scope():
            self.down1 = Block(n_units)
            self.down2 = Block(n_units * 2)
            self.bottom = Block(n_units * 4)
            self.up2 = L.Deconvolution2D(n_units * 4, n_units * 2, 2, stride=2)
            self.merge2 = Block(n_units * 2)
            self.up1 = L.Deconvolution2D(n_units * 2, n_units, 2, stride=2)
            self.merge1 = Block(n_units)
            self.score = L.Convolution2D(n_units, n_classes, 1)

    def forward(self, x):
        fine = self.down1(x)
        coarse = self.down2(F.max_pooling_2d(fine, 2))
        h = self.bottom(F.max_pooling_2d(coarse, 2))
        h = self.merge2(F.concat([self.up2(h), coarse]))
        h = self.merge1(F.concat([self.up1(h), fine]))
        return self.score(h)


class MeanIoU(extensions.Evaluator):
    """Loss and accuracy of pixels, and the mean over classes of intersection over union."""

    def evaluate(self):
        model, iterator = self.get_target("main"), self.get_iterator("main")
        iterator.reset()
        both, either, losses = np.zeros(len(CLASSES)), np.zeros(len(CLASSES)), []
        for batch in iterator:
            x, t = self.converter(batch, self.device)
            with chainer.no_backprop_mode(), chainer.using_config("train", False):
                losses.append(float(model(x, t).array))
            found = chainer.get_device("@numpy").send(model.y.array).argmax(axis=1)
            wanted = np.array([label for _, label in batch])
            for index in range(len(CLASSES)):
                both[index] += ((found == index) & (wanted == index)).sum()
                either[index] += ((found == index) | (wanted == index)).sum()
        return {f"{self.name}/main/loss": np.mean(losses), f"{self.name}/main/miou": np.mean(both / either)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=8, help="images in a batch")
    parser.add_argument("--epoch", "-e", type=int, default=10, help="passes over the training set")
    parser.add_argument("--unit", "-u", type=int, default=12, help="channels of the first block")
    parser.add_argument("--device", "-d", default="@numpy", help="a device of Chainer: @numpy, @cupy:0")
    parser.add_argument("--out", "-o", default="results/unet", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    args = parser.parse_args()
    n_train, n_test, size = 480, 64, 32
    if args.quick:
        n_train, n_test, args.epoch, args.unit = 240, 32, 3, 8
    np.random.seed(0)
    device = chainer.get_device(args.device)
    device.use()

    train, test = get_shapes(n_train, size, seed=0), get_shapes(n_test, size, seed=1)
    train_iter = chainer.iterators.SerialIterator(train, args.batchsize)
    test_iter = chainer.iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)

    model = L.Classifier(UNet(len(CLASSES), args.unit))
    model.to_device(device)
    optimizer = chainer.optimizers.Adam(0.005)
    optimizer.setup(model)

    updater = training.updaters.StandardUpdater(train_iter, optimizer, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(MeanIoU(test_iter, model, device=device), name="validation")
    trainer.extend(extensions.ExponentialShift("alpha", 0.85), trigger=(1, "epoch"))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/loss", "validation/main/loss", "main/accuracy", "validation/main/miou"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.run()
    chainer.serializers.save_npz(f"{args.out}/model.npz", model)


if __name__ == "__main__":
    main()
