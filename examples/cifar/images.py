"""Images in folders of classes, such as ``train/cat/0001.jpg``, as a data set of Chainer."""

import os

import chainer
import numpy as np

SIZE = 32


def get_images(folder, train):
    """A data set of images (3, 32, 32), about -1 to 1 in float32, and labels: random crops, or the centres."""
    classes = sorted(os.listdir(folder))
    pairs = [
        (os.path.join(name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(folder, name)))
    ]
    images = chainer.datasets.LabeledImageDataset(pairs, root=folder)
    return chainer.datasets.TransformDataset(images, Crop(train))


class Crop:
    """Crops and scales an image; an object, as a function in a function cannot be sent to another process."""

    def __init__(self, train):
        self._train = train

    def __call__(self, pair):
        image, label = pair
        image = np.broadcast_to(image, (3, *image.shape[1:]))  # gray images have one channel
        room = np.array(image.shape[1:]) - SIZE
        top, left = np.random.randint(room + 1) if self._train else room // 2
        return (image[:, top : top + SIZE, left : left + SIZE] - 120) / np.float32(60), label
