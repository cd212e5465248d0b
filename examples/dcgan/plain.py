"""A DCGAN that draws handwritten digits, after examples/dcgan of Chainer (MIT licence)."""

import argparse
import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions
from PIL import Image

from mixprec.data.digit_images import load_digits


class Generator(chainer.Chain):
    """(N, n_hidden) random numbers to (N, 1, 8, 8) images from 0 to 1."""

    def __init__(self, n_hidden, ch):
        super().__init__()
        self.n_hidden, self.ch = n_hidden, ch
        with self.init_scope():
            self.l0 = L.Linear(n_hidden, 4 * ch)
            self.dc1 = L.Deconvolution2D(ch, ch // 2, 4, 2, 1)
            self.dc2 = L.Deconvolution2D(ch // 2, ch // 4, 4, 2, 1)
            self.dc3 = L.Deconvolution2D(ch // 4, 1, 3, 1, 1)
            self.bn0 = L.BatchNormalization(4 * ch)
            self.bn1 = L.BatchNormalization(ch // 2)
            self.bn2 = L.BatchNormalization(ch // 4)

    def make_hidden(self, n):
        return np.random.uniform(-1, 1, (n, self.n_hidden)).astype(np.float32)

    def forward(self, z):
        h = F.reshape(F.relu(self.bn0(self.l0(z))), (len(z), self.ch, 2, 2))
        h = F.relu(self.bn1(self.dc1(h)))
        h = F.relu(self.bn2(self.dc2(h)))
        return F.sigmoid(self.dc3(h))


class Discriminator(chainer.Chain):
    """(N, 1, 8, 8) images to (N, 1) scores, positive for images that it takes for real ones."""

    def __init__(self, ch):
        super().__init__()
        with self.init_scope():
            self.c0 = L.Convolution2D(1, ch // 2, 3, 1, 1)
            self.c1 = L.Convolution2D(ch // 2, ch, 4, 2, 1)
            self.c2 = L.Convolution2D(ch, ch, 4, 2, 1)
            self.l3 = L.Linear(4 * ch, 1)
            self.bn1 = L.BatchNormalization(ch, use_gamma=False)
            self.bn2 = L.BatchNormalization(ch, use_gamma=False)

    def forward(self, x):
        h = F.leaky_relu(self.c0(x))
        h = F.leaky_relu(self.bn1(self.c1(h)))
        h = F.leaky_relu(self.bn2(self.c2(h)))
        return self.l3(h)


class DCGANUpdater(training.updaters.StandardUpdater):
    """Trains both networks on a batch."""

    def __init__(self, models, *args, **kwargs):
        self.gen, self.dis = models
        super().__init__(*args, **kwargs)

    def loss_dis(self, dis, y_fake, y_real):
        loss = F.mean(F.softplus(-y_real)) + F.mean(F.softplus(y_fake))
        chainer.report({"loss": loss}, dis)
        return loss

    def loss_gen(self, gen, y_fake):
        loss = F.mean(F.softplus(-y_fake))
        chainer.report({"loss": loss}, gen)
        return loss

    def update_core(self):
        gen_optimizer, dis_optimizer = self.get_optimizer("gen"), self.get_optimizer("dis")
        x_real = chainer.Variable(self.converter(self.get_iterator("main").next(), self.device))
        z = self.device.send(self.gen.make_hidden(len(x_real)))
        x_fake = self.gen(z)
        y_real, y_fake = self.dis(x_real), self.dis(x_fake)
        dis_optimizer.update(self.loss_dis, self.dis, y_fake, y_real)
        gen_optimizer.update(self.loss_gen, self.gen, y_fake)


def draw(gen, n):
    """Returns ``n`` images (n, 8, 8) on the host, by the statistics of training, as digits are few."""
    z = gen.device.send(gen.make_hidden(n))
    with chainer.no_backprop_mode():
        return chainer.get_device("@numpy").send(gen(z).array)[:, 0].astype(np.float32)


def preview(gen, rows=8):
    """Returns an extension that writes a sheet of images for each epoch."""

    @chainer.training.make_extension(trigger=(1, "epoch"))
    def write(trainer):
        sheet = draw(gen, rows * rows).reshape(rows, rows, 8, 8).transpose(0, 2, 1, 3).reshape(rows * 8, rows * 8)
        os.makedirs(f"{trainer.out}/preview", exist_ok=True)
        image = Image.fromarray((255 - 255 * sheet).astype(np.uint8)).resize((512, 512), Image.Resampling.NEAREST)
        image.save(f"{trainer.out}/preview/epoch-{trainer.updater.epoch}.png")

    return write


def distance(gen, real):
    """Returns an extension that reports how far drawn digits are from real ones, in means and deviations of pixels."""

    @chainer.training.make_extension(trigger=(1, "epoch"), priority=training.PRIORITY_WRITER)
    def report(trainer):
        fake = draw(gen, len(real))
        gaps = fake.mean(0) - real[:, 0].mean(0), fake.std(0) - real[:, 0].std(0)
        trainer.observation["distance"] = float(np.sqrt(np.mean(np.square(gaps))))

    return report


def make_optimizer(model, alpha=0.001, beta1=0.5):
    optimizer = chainer.optimizers.Adam(alpha=alpha, beta1=beta1)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.0001))
    return optimizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=64, help="images in a batch")
    parser.add_argument("--epoch", "-e", type=int, default=20, help="passes over the digits")
    parser.add_argument("--device", "-d", default="@numpy", help="a device of Chainer: @numpy, @cupy:0")
    parser.add_argument("--out", "-o", default="results/dcgan", help="folder for the results")
    parser.add_argument("--n_hidden", "-n", type=int, default=32, help="random numbers that an image is drawn from")
    parser.add_argument("--ch", type=int, default=64, help="channels of the widest layers")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.epoch, args.ch = 6, 32
    np.random.seed(0)
    device = chainer.get_device(args.device)
    device.use()

    images = load_digits()[0].reshape(-1, 1, 8, 8).astype(np.float32) / 16
    train_iter = chainer.iterators.SerialIterator(images, args.batchsize)

    gen, dis = Generator(args.n_hidden, args.ch), Discriminator(args.ch)
    gen.to_device(device)
    dis.to_device(device)
    optimizers = {"gen": make_optimizer(gen), "dis": make_optimizer(dis)}

    updater = DCGANUpdater((gen, dis), train_iter, optimizers, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(extensions.snapshot(filename="snapshot_epoch-{.updater.epoch}"), trigger=(args.epoch, "epoch"))
    trainer.extend(preview(gen))
    trainer.extend(distance(gen, images))
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.PrintReport(["epoch", "gen/loss", "dis/loss", "distance"]))
    trainer.run()
    chainer.serializers.save_npz(f"{args.out}/gen.npz", gen)
    chainer.serializers.save_npz(f"{args.out}/dis.npz", dis)


if __name__ == "__main__":
    main()
