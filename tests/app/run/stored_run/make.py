"""Makes the files beside it, see README.md; the test takes its network, config and images."""

import pathlib
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from PIL import Image

CONFIG = """\
model: {arch: tiny, classes: 3}
data: {train: images/train, val: images/val, size: 16, resize: 16, loader: pillow, threads: 1}
loss_scale: {init_scale: 1024, growth_factor: 4, growth_interval: 3, min_scale: 0.5}
optimizer: {lr: 0.01, base_batch_size: 4, momentum: 0.8, weight_decay: 0.001}
training: {batch_size: 2, accumulation_steps: 2, epochs: 3, seed: 5, device: cpu, label_smoothing: 0.1, ema_decay: 0.9}
snapshot: {every: 2 iterations, keep: 5}
log: {every: 1 iteration}
"""


class Network(chainer.Chain):
    """A convolution, a batch normalization and a linear layer."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, nobias=True)
            self.norm = L.BatchNormalization(4)
            self.linear = L.Linear(4, classes)

    def forward(self, x):
        """Returns the logits of images."""
        h = F.relu(self.norm(self.conv(x)))
        return self.linear(F.average_pooling_2d(h, h.shape[2:]))


def make_images(folder):
    """Writes the images of the run."""
    random = np.random.RandomState(0)
    for split, count in (("train", 4), ("val", 2)):
        for label, name in enumerate("abc"):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = random.randint(0, 60, (18, 18, 3)) + 90 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{index}.png")


if __name__ == "__main__":
    from mixprec.app.commands import train as command

    make_images(pathlib.Path("images"))
    pathlib.Path("c.yaml").write_text(CONFIG)
    sys.exit(command.main(["--config", "c.yaml", "--out", "run"], {"tiny": Network}))
