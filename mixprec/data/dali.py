"""DALI on the CPU as a Chainer iterator."""

import dataclasses
import json
import os
import tempfile

import numpy as np
from chainer import dataset
from chainer.serializer import Deserializer
from PIL import Image

from mixprec.data.folders import DataError, image_problem
from mixprec.data.pipeline import PipelineSpec, build_pipeline, require_dali


class DaliIterator(dataset.Iterator):
    """Batches of decoded, augmented and normalized images, in Chainer's iterator interface.

    A batch is ``(x, t)``: x (B, size, size, 3), C-contiguous, RGB, ``(pixel - mean) / std`` with pixels in 0..255;
    t int32 (B,). Both are NumPy arrays that stay valid for as long as they are kept. Each image comes exactly once
    an epoch, so the last batch of an epoch may be smaller.

    - Training repeats for ever; each epoch has a new order, new random crops (resized to size x size) and flips.
    - Validation resizes the shorter side to ``resize``, takes the centre crop, and stops after one pass;
      ``reset()`` rewinds it.

    The batches depend on ``seed``, not on ``threads``; ``dtype`` only rounds them. A snapshot holds the exact position:
    a fresh iterator with the same images and settings that loads it goes on with bit-identical batches.
    Images are turned upright as their EXIF orientation says.

    Args:
        images (ImageFolder): What to read, from :func:`~mixprec.data.folders.scan_folders`.
        batch_size (int): Images a batch, 1 to len(images).
        train (bool): Training or validation.
        size (int): Height and width of the output, in pixels.
        resize (int or None): Validation: length of the shorter side before the crop, >= size;
            None keeps the image as it is, it must then be at least size x size.
        crop_area (pair of float): Training: area of the random crop as a fraction of the image's area.
        aspect (pair of float): Training: aspect ratio (width / height) of the random crop.
        flip (bool): Training: mirror half of the images, left to right.
        mean (three floats): Mean of the channels R, G, B, in 0..255.
        std (three floats): Standard deviation of the channels, in 0..255.
        dtype (str): ``'float16'`` or ``'float32'``.
        seed (int): >= 0; fixes order and augmentation.
        threads (int): DALI's CPU threads.

    Raises:
        DataError: An argument is impossible, DALI is missing, or, from ``next()``, an image cannot be decoded.
    """

    def __init__(
        self,
        images,
        batch_size,
        *,
        train,
        size,
        resize=None,
        crop_area=(0.08, 1.0),
        aspect=(3 / 4, 4 / 3),
        flip=False,
        mean,
        std,
        dtype,
        seed,
        threads,
    ):
        self._pipeline = None
        self._spec = PipelineSpec(
            batch_size=int(batch_size),
            train=bool(train),
            size=int(size),
            resize=None if resize is None else int(resize),
            crop_area=tuple(map(float, crop_area)),
            aspect=tuple(map(float, aspect)),
            flip=bool(flip),
            mean=tuple(map(float, mean)),
            std=tuple(map(float, std)),
            seed=int(seed),
        )
        _validate(self._spec, len(images), dtype, threads)
        self._dali_version = require_dali().__version__
        self._images = images
        self._dtype = dtype
        self._threads = threads
        self.reset()

    @property
    def batch_size(self):
        return self._spec.batch_size

    @property
    def repeat(self):
        return self._spec.train

    @property
    def epoch_detail(self):
        return self.epoch + self._position / len(self._images)

    @property
    def previous_epoch_detail(self):
        return None if self._previous_epoch_detail < 0 else self._previous_epoch_detail

    def reset(self):
        """Rewinds to the very beginning: the same batches come again."""
        self._rewind(checkpoint=None, epoch=0, position=0, is_new_epoch=False, previous_epoch_detail=-1.0)

    def __next__(self):
        if not self.repeat and self.epoch > 0:
            raise StopIteration
        if self._pipeline is None:
            self._pipeline = self._build(self._images)
        try:
            pixels, labels = self._pipeline.run()
        except RuntimeError as error:
            self._pipeline = None  # run() again would skip what failed
            raise DataError(self._explain(error)) from error
        self._checkpoint = self._pipeline.checkpoint()
        # DALI fills the last batch of an epoch up by repeating an image.
        count = min(self.batch_size, len(self._images) - self._position)
        self._previous_epoch_detail = self.epoch_detail
        self._position += count
        self.is_new_epoch = self._position == len(self._images)
        if self.is_new_epoch:
            self.epoch += 1
            self._position = 0
        return np.asarray(pixels.as_tensor())[:count], np.asarray(labels.as_tensor())[:count, 0]

    def finalize(self):
        """Ends DALI's threads. The position is kept: a later ``next()`` or ``serialize()`` goes on from there."""
        self._pipeline = None

    def serialize(self, serializer):
        """Saves or restores the position.

        Raises:
            DataError: The snapshot belongs to an iterator over other images or with other settings; it says which.
        """
        settings = self._settings()
        if not isinstance(serializer, Deserializer):
            serializer("settings", np.frombuffer(json.dumps(settings).encode(), np.uint8))
            serializer("checkpoint", np.frombuffer(self._checkpoint or b"", np.uint8))
            serializer("epoch", self.epoch)
            serializer("position", self._position)
            serializer("is_new_epoch", self.is_new_epoch)
            serializer("previous_epoch_detail", self._previous_epoch_detail)
            return
        stored = serializer("settings", None)
        if stored is None:  # load_npz(strict=False) of a snapshot without this iterator
            return
        _compare(json.loads(np.asarray(stored).tobytes()), settings)
        self._rewind(
            checkpoint=np.asarray(serializer("checkpoint", None)).tobytes() or None,
            epoch=serializer("epoch", self.epoch),
            position=serializer("position", self._position),
            is_new_epoch=serializer("is_new_epoch", self.is_new_epoch),
            previous_epoch_detail=serializer("previous_epoch_detail", self._previous_epoch_detail),
        )

    def _rewind(self, *, checkpoint, epoch, position, is_new_epoch, previous_epoch_detail):
        self._pipeline = None
        self._checkpoint = checkpoint  # after the last batch delivered; None: at the very beginning
        self.epoch = epoch
        self._position = position  # images of this epoch that have been delivered
        self.is_new_epoch = is_new_epoch
        self._previous_epoch_detail = previous_epoch_detail

    def _build(self, images):
        return build_pipeline(images, self._spec, dtype=self._dtype, threads=self._threads, checkpoint=self._checkpoint)

    def _settings(self):
        """What a snapshot must agree with. Not the dtype: a FP32 snapshot goes on in FP16, and back."""
        return {
            **json.loads(json.dumps(dataclasses.asdict(self._spec))),
            "number of images": len(self._images),
            "files and labels (SHA-256)": self._images.fingerprint,
            "DALI version": self._dali_version,
        }

    def _explain(self, error):
        """One line for DALI's error: the file and what is wrong with it, as far as that can be told."""
        lines = str(error).rpartition("encountered:")[2].splitlines()
        reason = next((line.strip() for line in lines if line.strip()), type(error).__name__)
        # The reader names the file, and runs a batch ahead: the file need not be of the batch that failed.
        if self._images.root in reason:
            return reason
        paths = self._failed_paths()
        for path in paths:
            problem = image_problem(path)
            if problem:
                return f"{path}: {problem}"
        return f"{reason}: one of the images {', '.join(paths)}"

    def _failed_paths(self):
        """Files of the batch that could not be delivered.

        DALI does not tell. The same pipeline, from the same checkpoint, over as many copies of a blank image whose
        labels are their indices, gives the same order.
        """
        count = len(self._images)
        with tempfile.NamedTemporaryFile(suffix=".png") as blank:
            Image.new("RGB", (self._spec.size, self._spec.size)).save(blank, "PNG")
            blank.flush()
            indices = dataclasses.replace(
                self._images, files=(blank.name,) * count, labels=np.arange(count, dtype=np.int32)
            )
            labels = np.asarray(self._build(indices).run()[1].as_tensor())[: count - self._position, 0]
        return [os.path.join(self._images.root, self._images.files[index]) for index in labels]


def _validate(spec, images, dtype, threads):
    """Raises :class:`DataError` for the first argument that is impossible."""
    low, high = spec.crop_area
    narrow, wide = spec.aspect
    checks = (
        (1 <= spec.batch_size <= images, f"batch_size {spec.batch_size}: must be 1 to {images}, the number of images"),
        (spec.size >= 1, f"size {spec.size}: must be at least 1"),
        (
            spec.resize is None or not spec.train,
            f"resize {spec.resize}: only for validation; training resizes its random crops to size",
        ),
        (
            spec.resize is None or spec.resize >= spec.size,
            f"resize {spec.resize}: must be at least size, {spec.size}, which is cropped from it",
        ),
        (spec.train or not spec.flip, "flip: only for training"),
        (0 < low <= high <= 1, f"crop_area {spec.crop_area}: must be 0 < lowest <= highest <= 1"),
        (0 < narrow <= wide, f"aspect {spec.aspect}: must be 0 < lowest <= highest"),
        (len(spec.mean) == 3, f"mean {spec.mean}: must be three numbers, for R, G, B"),
        (len(spec.std) == 3 and min(spec.std) > 0, f"std {spec.std}: must be three numbers above 0, for R, G, B"),
        (dtype in ("float16", "float32"), f"dtype {dtype!r}: must be 'float16' or 'float32'"),
        (spec.seed >= 0, f"seed {spec.seed}: must be at least 0"),
        (threads >= 1, f"threads {threads}: must be at least 1"),
    )
    for possible, message in checks:
        if not possible:
            raise DataError(message)


def _compare(stored, settings):
    """Raises :class:`DataError` that names every setting in which a snapshot differs from this iterator."""
    different = [
        f"{key} is {settings.get(key)} here, {stored.get(key)} in the snapshot"
        for key in {**settings, **stored}
        if settings.get(key) != stored.get(key)
    ]
    if different:
        raise DataError(f"the snapshot's position belongs to other data or settings: {'; '.join(different)}")
