"""The loaders that are compared, each in a process of its own, and the pictures that they read."""

import concurrent.futures
import io
import os
import time

import chainer
import numpy as np
from chainer import iterators
from chainer.dataset import concat_examples
from PIL import Image

from mixprec.data.loaders.dali import DaliIterator
from mixprec.data.loaders.pillow import PillowIterator
from mixprec.data.loaders.pillow_worker import random_crop
from mixprec.data.loaders.spec import BatchSpec, Crop, Delivery, Normalization
from mixprec.data.sources.folders import ImageFiles

DALI, PILLOW, ON_GPU = "mixprec DaliIterator", "mixprec PillowIterator", "mixprec DaliIterator, on the GPU"
CHAINER, SERIAL = "Chainer MultiprocessIterator, Pillow", "Chainer SerialIterator, Pillow"
SIZE = 224
CROP, NORMALIZATION = Crop(size=SIZE, flip=True), Normalization()
_WIDTH, _HEIGHT = 500, 375  # ImageNet's commonest size
_QUALITY = 95  # with the noise below about 110 KB a picture, as ImageNet has
_PREFETCH = 2  # batches
_DRAIN = _PREFETCH + 2  # so many are made ahead at most, by the time a turn begins


def make_pictures(folder, count):
    """Writes JPEGs of noise of all frequencies, as large as ImageNet's, into class folders.

    Args:
        folder (str): An empty one.
        count (int): Number of pictures.

    Returns:
        ImageFiles: The pictures, of ten classes.
    """
    classes = tuple(map(str, range(10)))
    for name in classes:
        os.mkdir(os.path.join(folder, name))
    files = tuple(f"{number % 10}/{number:05}.jpg" for number in range(count))

    def write(number):
        with open(os.path.join(folder, files[number]), "wb") as file:
            file.write(_picture(number))

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(write, range(count)))
    return ImageFiles(folder, classes, files, np.arange(count, dtype=np.int32) % 10)


def _picture(number):
    random = np.random.RandomState(number)
    pixels = np.zeros((_HEIGHT, _WIDTH, 3), np.float32)
    for cell in (1, 2, 4, 8, 16, 32, 64):
        noise = random.randint(0, 256, (_HEIGHT // cell + 1, _WIDTH // cell + 1, 3)).astype(np.uint8)
        smooth = Image.fromarray(noise).resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC)
        pixels += np.asarray(smooth, np.float32) * np.float32(cell**0.25)
    pixels = (pixels - pixels.min()) * (255 / np.ptp(pixels))
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


class PillowDataset(chainer.dataset.DatasetMixin):
    """What a user of Chainer writes: a picture, cropped, flipped and normalized, float16 (224, 224, 3), and its label.

    Args:
        images: A source of images, see :mod:`mixprec.data.sources.folders`.
    """

    def __init__(self, images):
        self._images = images
        self._mean, self._std = (np.array(each, np.float32) for each in (NORMALIZATION.mean, NORMALIZATION.std))

    def __len__(self):
        return len(self._images)

    def get_example(self, i):
        """Returns the image and the label, an int32."""
        numbers = np.random.random_sample(41).tolist()
        image = Image.open(io.BytesIO(self._images.read(i))).convert("RGB")
        box = random_crop(*image.size, CROP.crop_area, CROP.aspect, numbers[1:])
        image = image.crop(box).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if numbers[0] < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(image, np.float32)
        pixels -= self._mean
        pixels /= self._std
        return pixels.astype(np.float16), self._images.labels[i]


# What runs in the process of a loader

_loader = []  # an iterator, and a callable from its batches to arrays


def names(gpu):
    """Returns the names of the loaders.

    Args:
        gpu: number of the GPU, or ``None`` for none.
    """
    return (DALI, *((ON_GPU,) if gpu is not None else ()), CHAINER, SERIAL, PILLOW)


def prepare(name, images, batch, threads, gpu=None):
    """Makes the loader ready to deliver batches.

    Args:
        name: one of :func:`names`.
        images: a source of images.
        batch: images in a batch.
        threads: number of threads of DALI, or of processes.
        gpu: number of the GPU of :data:`ON_GPU`.
    """
    _loader[:] = _made(name, images, batch, threads, gpu)
    _next()


def _made(name, images, batch, threads, gpu):
    dataset = PillowDataset(images)
    if name == SERIAL:
        return iterators.SerialIterator(dataset, batch, shuffle=True), concat_examples
    if name == CHAINER:
        several = {"n_processes": threads, "n_prefetch": _PREFETCH}
        return iterators.MultiprocessIterator(dataset, batch, shuffle=True, **several), concat_examples
    # As Chainer's iterators: full batches only. What is left over of an epoch is left out.
    spec = BatchSpec(batch_size=batch, train=True, crop=CROP, seed=0, last_batch="drop")
    own = spec, Delivery(dtype="float16", threads=threads, prefetch=_PREFETCH)
    if name == PILLOW:
        return PillowIterator(images, *own), lambda arrays: arrays
    if name == ON_GPU:
        chainer.cuda.Device(gpu).use()
    return DaliIterator(images, *own, device_id=gpu if name == ON_GPU else None), lambda arrays: arrays


def turn(batches):
    """Returns the seconds that an image takes, while nothing else wants a processor."""
    for _ in range(_DRAIN):
        _next()
    images = 0
    start = time.perf_counter()
    for _ in range(batches):
        images += len(_next()[0])
    seconds = time.perf_counter() - start
    time.sleep(seconds / batches * _DRAIN)  # until what is made ahead is made, and does not disturb others
    return seconds / images


def waiting(rate, steps):
    """Takes batches as a trainer does that needs 1 / rate seconds for an image, and sleeps until they are over.

    Args:
        rate (float): Images a second.
        steps (int): Number of batches.

    Returns:
        float: the share of its time that it waits for them.
    """
    for step in range(-_DRAIN, steps):
        if step == 0:  # with as much made ahead as always
            start, waited = time.perf_counter(), 0.0
        before = time.perf_counter()
        count = len(_next()[0])
        after = time.perf_counter()
        if step >= 0:
            waited += after - before
        time.sleep(max(0, after + count / rate - time.perf_counter()))
    return waited / (time.perf_counter() - start)


def end():
    """Ends the loader's threads and processes."""
    _loader[0].finalize()


def _next():
    iterator, arrays = _loader
    x, t = arrays(next(iterator))
    if not isinstance(x, np.ndarray):
        chainer.cuda.Stream.null.synchronize()
    return x, t
