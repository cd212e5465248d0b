"""A worker process of the Pillow loader: it decodes its share of each batch into memory shared with the trainer.

It gets only the arguments of :func:`main` from the trainer's process: no state is inherited, as by a fork, and the
user's script is not run again, as by ``multiprocessing``, which would need a guard around its main part.
"""

import functools
import io
import math
import mmap
import os
import pickle
import signal
import sys
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from mixprec.data.data_error import DataError
from mixprec.data.loaders.augmentation import parts_of
from mixprec.data.loaders.spec import BatchSpec
from mixprec.data.loaders.uniforms import CROP, rectangles, uniforms
from mixprec.data.sources.image_check import FORMATS, image_problem

_ATTEMPTS = 10  # at a random crop, as in DALI and torchvision


@dataclass(frozen=True)
class Work:
    """The settings that all tasks share.

    Attributes:
        images: Source of the images, see :mod:`mixprec.data.sources.folders`.
        spec (BatchSpec): Shapes, augmentation, seed.
        dtype (str): ``'float16'`` or ``'float32'``.
        channels (int): Channels of the batches in memory: 3, or 4, whose last is not written.
        stride (int): Bytes from one batch in memory to the next.
    """

    images: object
    spec: BatchSpec
    dtype: str
    channels: int
    stride: int

    def pixels(self, index, epoch, position=0):
        """Decodes an image, crops, resizes, flips and augments it.

        Args:
            index (int): Index of the image.
            epoch (int): Training: with the seed, the index and the position, it determines all random numbers.
            position (int): Training: position of the image in the order of the epoch.

        Returns:
            numpy.ndarray: uint8, (size, size, 3), RGB.

        Raises:
            DataError: It cannot be read or decoded, or is too small; the message names it.
        """
        encoded = self.images.read(index)
        try:
            return self._decode(io.BytesIO(encoded), index, epoch, position)
        except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error... for broken images
            reason = image_problem(io.BytesIO(encoded)) or str(error).partition("\n")[0] or type(error).__name__
            raise DataError(f"{self.images.name(index)}: {reason}") from error

    def _decode(self, encoded, index, epoch, position):
        spec, crop = self.spec, self.spec.crop
        with Image.open(encoded, formats=FORMATS) as image:
            for xmp in ("xmp", "XML:com.adobe.xmp"):  # Pillow looks for an orientation here, too, DALI does not
                image.info.pop(xmp, None)
            ImageOps.exif_transpose(image, in_place=True)
            if not spec.train:
                return np.asarray(_centre(image, crop.size, crop.resize))
            # By the image, not the position: seeds have had these crops since before there were copies of images.
            copy = position % spec.augmentation.repeats
            mirror, *attempts = uniforms(1 + 4 * _ATTEMPTS, spec, epoch, CROP, index, copy)
            box = random_crop(image.width, image.height, crop.crop_area, crop.aspect, attempts)
            found = _rgb(image.crop(box)).resize((crop.size, crop.size), Image.Resampling.BILINEAR)
        if crop.flip and mirror < 0.5:
            found = ImageOps.mirror(found)
        for part in parts_of(spec.augmentation, of_pixels=True):
            found = part.pillow(found, part.draw(spec, epoch, position))
        return np.asarray(found)

    def normalize(self, pixels, out):
        """Writes ``(pixels - mean) / std``, rounded to float32 and then to the dtype, into ``out``.

        Args:
            pixels (numpy.ndarray): uint8, (size, size, 3).
            out (numpy.ndarray): (size, size, 3 or 4); a fourth channel is left as it is.
        """
        table, first = self._normalized
        # Three times as fast as arithmetic, as there are only 256 values a channel.
        values = table.take(pixels.reshape(len(pixels), -1) + first, mode="clip")  # clip: faster, as it needs no check
        out[..., :3] = values.reshape(pixels.shape)

    def augment(self, out, epoch, position):
        """Augments a normalized image in place.

        Args:
            out (numpy.ndarray): (size, size, 3 or 4).
            epoch (int): As for :meth:`pixels`.
            position (int): As for :meth:`pixels`.
        """
        for part in parts_of(self.spec.augmentation, of_pixels=False):
            part.pillow(out[..., :3], part.draw(self.spec, epoch, position))

    @functools.cached_property
    def _normalized(self):
        """The tables of normalized values of red, green and blue, concatenated, and the start of each subpixel's."""
        exact = (np.arange(256)[:, None] - self.spec.normalization.mean) / self.spec.normalization.std
        table = exact.T.astype(np.float32).astype(self.dtype).ravel()
        return table, np.tile(np.array([0, 256, 512], np.uint16), self.spec.crop.size)

    def shape(self, count):
        """Shape of ``count`` images in memory."""
        return (count, self.spec.crop.size, self.spec.crop.size, self.channels)


def random_crop(width, height, area, aspect, attempts):
    """Returns the random crop of Szegedy et al. 2015 (arXiv:1409.4842, section 6), as DALI and torchvision draw it.

    The area is uniform, the aspect ratio log-uniform, the position uniform. If none of the attempts fits into the
    image, it is the largest crop at the centre that the ranges allow.

    Args:
        width (int): Width of the image.
        height (int): Height of the image.
        area (pair of float): Smallest and largest area, as a fraction of the image's.
        aspect (pair of float): Smallest and largest ratio of width to height.
        attempts: Numbers in [0, 1), four an attempt: area, aspect ratio, horizontal and vertical position.

    Returns:
        tuple of int: left, top, right, bottom.
    """
    low, high = (width * height * part for part in area)
    for w, h, x, y in rectangles(low, high, aspect, attempts):
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, height * aspect[1]), min(height, width / aspect[0])
    shrink = math.sqrt(min(1, high / (w * h)))
    w, h = (min(side, max(1, round(length * shrink))) for side, length in ((width, w), (height, h)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _centre(image, size, resize):
    """Resizes the shorter side and crops the centre, both as DALI does; only the crop is computed."""
    scale = 1 if resize is None else resize / min(image.size)
    # DALI rounds the size of the resized image, but not its scale: a fraction of a pixel is left out at each border.
    sides = [max(1, math.floor(side * scale + 0.5)) for side in image.size]
    if min(sides) < size:
        raise DataError(f"{image.width}x{image.height} pixels: smaller than the crop of {size}x{size}")
    first = [(side - size + 1) // 2 for side in sides]
    if resize is None:
        return _rgb(image.crop((*first, first[0] + size, first[1] + size)))
    begin = [side / 2 + (at - wide / 2) / scale for side, at, wide in zip(image.size, first, sides, strict=True)]
    end = [min(side, at + size / scale) for side, at in zip(image.size, begin, strict=True)]
    return _rgb(image).resize((size, size), Image.Resampling.BILINEAR, box=(*(max(0, at) for at in begin), *end))


def _rgb(image):
    return image if image.mode == "RGB" else image.convert("RGB")


def main(work, memory):
    """Does tasks from standard input until it ends.

    A task is a pickled ``(slot, row, epoch, images)``, the last being index and position of each image: they go to
    consecutive rows, from ``row`` on, of the batch in slot ``slot``. The answer, on standard output, is a pickled None
    or error message.

    Args:
        work (int): Descriptor of a file that holds the pickled :class:`Work`.
        memory (int): Descriptor of the file in which the batches lie.
    """
    # Signals come to all processes of a job, and the trainer handles them: this process ends with its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # printed text must not mix with the answers
    with mmap.mmap(work, 0, access=mmap.ACCESS_READ) as pickled:
        work = pickle.loads(pickled)
    batches = {}
    try:
        while True:
            slot, row, epoch, images = pickle.load(tasks)
            if slot not in batches:
                batch = mmap.mmap(memory, work.stride, offset=slot * work.stride)
                shape = work.shape(work.spec.batch_size)
                batches[slot] = np.frombuffer(batch, work.dtype, math.prod(shape)).reshape(shape)
            answers.write(pickle.dumps(_do(work, batches[slot][row:], epoch, images)))
    except (EOFError, BrokenPipeError):  # the trainer has ended
        return


def _do(work, rows, epoch, images):
    """Returns None, or the error in one line."""
    try:
        for row, (index, position) in zip(rows, images, strict=False):
            work.normalize(work.pixels(index, epoch, position), row)
            work.augment(row, epoch, position)
    except DataError as error:
        return str(error)
    return None
