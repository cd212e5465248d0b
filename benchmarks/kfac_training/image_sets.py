"""Small sets of images in memory, and the network for each."""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import os
import signal

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from PIL import Image

from models import MODELS
from scripts.datasets import digits, textures

_SIZE = 48  # of textures, height and width in pixels: the finest stripes have 21 periods
_MEAN, _STD = 118, 58  # of textures, as in configs/textures.yaml


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """Images and what they show.

    Attributes:
        title: for people.
        train_x: images, float32 (B, C, H, W).
        train_y: labels, int32 (B,).
        test_x: likewise, of other images.
        test_y: likewise.
        network: makes a new model, a Chainer link from images to logits.
    """

    title: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    network: object


class DigitNetwork(chainer.Chain):
    """Three 3x3 convolutions with batch normalization for images (B, 1, 8, 8); 10 logits.

    Running statistics have decay 0.5. With Chainer's 0.9 and three steps an epoch they lag by more than three epochs,
    and the accuracy of the first epochs would tell of them and not of the weights.

    Args:
        channels: of the three convolutions.
    """

    def __init__(self, channels):
        super().__init__()
        first, second, third = channels
        with self.init_scope():
            self.conv1, self.bn1 = _convolution(1, first)
            self.conv2, self.bn2 = _convolution(first, second)
            self.conv3, self.bn3 = _convolution(second, third)
            self.fc = L.Linear(third, 10)

    def forward(self, x):
        """(B, 1, 8, 8) -> (B, 10)."""
        h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), 2)
        h = F.max_pooling_2d(F.relu(self.bn2(self.conv2(h))), 2)
        h = F.relu(self.bn3(self.conv3(h)))
        return self.fc(F.average(h, axis=(2, 3)))


def digit_images(channels):
    """Returns scikit-learn's handwritten digits, 8x8 pixels, split as in ``scripts/make_digits.py``.

    Args:
        channels: of the convolutions of the network.
    """
    x, y = {"train": [], "val": []}, {"train": [], "val": []}
    for name, pixels in digits.named_images():
        part, digit, _ = name.split("/")
        x[part].append(pixels)
        y[part].append(int(digit))
    levels = {part: np.array(images, np.float32)[:, None] / 16 for part, images in x.items()}
    labels = {part: np.array(numbers, np.int32) for part, numbers in y.items()}
    mean, std = levels["train"].mean(), levels["train"].std()
    images = {part: (array - mean) / std for part, array in levels.items()}
    title = f"digits, 8x8 pixels, {len(x['train'])} for training and {len(x['val'])} for the test, channels {channels}"
    network = functools.partial(DigitNetwork, channels)
    return ImageSet(title, images["train"], labels["train"], images["val"], labels["val"], network)


def texture_images(number, seed=0):
    """Returns pictures of ``scripts/make_textures.py``, made small in memory; all cores take part.

    Args:
        number: of pictures, three tenths of them for the test.
        seed: as there.
    """
    pool = concurrent.futures.ProcessPoolExecutor(
        len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"), initializer=_ignore_interrupts
    )
    try:
        pixels = list(pool.map(functools.partial(_small, seed=seed), range(number), chunksize=16))
    finally:
        pool.shutdown(cancel_futures=True)
    x = (np.array(pixels, np.float32).transpose(0, 3, 1, 2) - _MEAN) / np.float32(_STD)
    y = np.arange(number, dtype=np.int32) % len(textures.CLASSES)
    test = np.array([textures.is_for_validation(index, number) for index in range(number)])
    title = f"textures, {_SIZE}x{_SIZE} pixels, {(~test).sum()} for training and {test.sum()} for the test"
    return ImageSet(title, x[~test], y[~test], x[test], y[test], _texture_network)


def _convolution(in_channels, out_channels):
    convolution = L.Convolution2D(in_channels, out_channels, 3, pad=1, nobias=True)
    return convolution, L.BatchNormalization(out_channels, decay=0.5)


def _texture_network():
    """A quarter of the channels of a ResNet-10, with running statistics as in :class:`DigitNetwork`."""
    model = MODELS["resnet10_small"](len(textures.CLASSES))
    for link in model.links():
        if isinstance(link, L.BatchNormalization):
            link.decay = 0.5
    return model


def _small(index, seed):
    """Returns a picture with its shorter side made ``_SIZE``, and the middle of it: uint8 (_SIZE, _SIZE, 3)."""
    image = Image.fromarray(textures.picture(index, seed))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = left, top, left + side, top + side
    return np.asarray(image.resize((_SIZE, _SIZE), Image.Resampling.BILINEAR, box=box))


def _ignore_interrupts():
    # Ctrl-C goes to all processes of a terminal; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
