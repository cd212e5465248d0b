"""Chainer's iterator interface over a loader of images: epochs, and a position that snapshots hold."""

import dataclasses
import json

import numpy as np
from chainer.serializer import Deserializer

from mixprec.data.data_error import DataError
from mixprec.data.loaders.order import Order
from mixprec.data.loaders.position import Position
from mixprec.data.loaders.spec import BatchSpec, defaults, validate


class ImageIterator(Position):
    """Batches of decoded, augmented and normalized images; the part that all loaders have in common.

    A batch is ``(x, t)``: x (B, size, size, 3), RGB, ``(pixel - mean) / std`` with pixels in 0..255, C-contiguous; with
    ``pad_channels`` a view of the first three channels of (B, size, size, 4), the fourth being zero. t int32 (B,).
    Both stay valid for as long as they are kept. Images are turned upright as their EXIF orientation says.

    - Training repeats for ever; each epoch has a new order, new random crops (Szegedy et al. 2015, resized to size x
      size) and flips. Shards of one data set with one seed are disjoint in each epoch, and together complete.
    - Validation resizes the shorter side to ``resize``, takes the centre crop, and stops after one pass;
      ``reset()`` rewinds it.

    The batches depend on ``seed``, not on ``threads`` or ``prefetch``; ``dtype`` only rounds them. A snapshot holds the
    exact position: a fresh iterator with the same images and settings that loads it goes on with bit-identical batches.
    What is made ahead is no part of the position.

    A subclass makes the batches, see :meth:`_make`.

    Args:
        images: What to read: a source such as :func:`~mixprec.data.sources.folders.scan_folders` returns.
        batch_size (int): Images a batch, 1 to the number of images in the smallest shard.
        train (bool): Training or validation.
        size (int): Height and width of the output, in pixels.
        resize (int or None): Validation: length of the shorter side before the crop, >= size;
            None keeps the image as it is, it must then be at least size x size.
        crop_area (pair of float): Training: area of the random crop as a fraction of the image's area.
        aspect (pair of float): Training: aspect ratio (width / height) of the random crop.
        flip (bool): Training: mirror half of the images, left to right.
        augment (str): Training: ``'none'``; ``'rand'``, RandAugment; or ``'trivial'``, TrivialAugment Wide. It comes
            after crop and flip, see :mod:`mixprec.data.loaders.augmentation`.
        augment_operations (int): Only with ``'rand'``, as all that follow: operations an image.
        augment_magnitude (int): Their strength, 0 to 30.
        augment_deviation (float): Its standard deviation: the strength of each operation is drawn from a normal
            distribution, rounded and clipped to 0..30.
        augment_probability (float): Of each operation.
        erase (float): Training: probability that a rectangle of an image becomes 0, after the normalization, see
            :mod:`mixprec.data.loaders.erasing`.
        repeats (int): Training: copies of an image in a batch of all shards, see
            :class:`~mixprec.data.loaders.order.Order`.
        mean (three floats): Mean of the channels R, G, B, in 0..255.
        std (three floats): Standard deviation of the channels, in 0..255.
        dtype (str): ``'float16'`` or ``'float32'``.
        seed (int): 0 to 2^32 - 1; fixes order and augmentation.
        threads (int): Threads, or processes, that decode.
        pad_channels (bool): A fourth channel of zeros in memory.
        last_batch (str): How an epoch ends, see :class:`~mixprec.data.loaders.epochs.Epochs`: ``'partial'`` has a
            smaller last batch, ``'drop'`` leaves images out, ``'pad'`` repeats images, with labels of -1. A shard that
            has no image in the last batch gets one with the label -1.
        shard (int): Which part of each batch of all shards to read.
        num_shards (int): Into how many parts a batch is divided.
        before (pair of int): Epochs and batches of earlier stages of training: this one goes on after them.
        prefetch (int): Batches made ahead.
        shuffle_window (int): Training from shard files that are read one after the other: images among which the next
            one is drawn. Everything else is shuffled as a whole.

    Raises:
        DataError: An argument is impossible, what the loader needs is missing, or, from ``next()``, an image cannot be
            decoded.
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
        augment="none",
        augment_operations=2,
        augment_magnitude=9,
        augment_deviation=0.0,
        augment_probability=1.0,
        erase=0.0,
        repeats=1,
        mean,
        std,
        dtype,
        seed,
        threads,
        pad_channels=False,
        last_batch="partial",
        shard=0,
        num_shards=1,
        before=(0, 0),
        prefetch=2,
        shuffle_window=16384,
    ):
        self._spec = BatchSpec(
            batch_size=int(batch_size),
            train=bool(train),
            size=int(size),
            resize=None if resize is None else int(resize),
            crop_area=tuple(map(float, crop_area)),
            aspect=tuple(map(float, aspect)),
            flip=bool(flip),
            augment=augment,
            augment_operations=int(augment_operations),
            augment_magnitude=int(augment_magnitude),
            augment_deviation=float(augment_deviation),
            augment_probability=float(augment_probability),
            erase=float(erase),
            repeats=int(repeats),
            mean=tuple(map(float, mean)),
            std=tuple(map(float, std)),
            seed=int(seed),
            last_batch=last_batch,
            shard=int(shard),
            num_shards=int(num_shards),
            epochs_before=int(before[0]),
            batches_before=int(before[1]),
        )
        validate(
            self._spec, len(images), dtype=dtype, threads=threads, prefetch=prefetch, shuffle_window=shuffle_window
        )
        self._images = images
        self._dtype = dtype
        self._pad_channels = bool(pad_channels)
        self._threads = int(threads)
        self._prefetch = int(prefetch)
        self._shuffle_window = int(shuffle_window)
        self._order = Order(self._spec, len(images))
        super().__init__(self._spec.epochs(len(images)))

    # What subclasses do.

    def _make(self, number):
        """Returns batch ``number`` (from 0, for ever), which is the one after the last one asked for.

        Unless :meth:`_restart` has been called: then that one is the first. Batch ``number`` of validation is batch
        ``number % self._epochs.batches``. When an exception leaves it, the same batch is asked for again, if any.

        Returns:
            ``(x, t)``: the ``self._epochs.count(number)`` images that count, then anything, padding included, up to
            the batch size; at least one image; with pad, of full size. x as in the class's description, or its four
            channels. t (B,).
        """
        raise NotImplementedError

    def _restart(self):
        """Forgets what was made ahead: the position is another one, ``self._delivered`` and the loader's state."""
        raise NotImplementedError

    def finalize(self):
        """Ends threads and processes. The position is kept: ``next()`` or ``serialize()`` go on from there."""
        raise NotImplementedError

    def _get_state(self):
        """Returns in bytes what it takes, besides the number of batches, to go on behind the last one delivered."""
        return b""

    def _set_state(self, state):
        """Takes what :meth:`_get_state` has returned; ``b""`` is the very beginning."""

    def _loader_settings(self):
        """Returns a dict of what else a snapshot must agree with: the name of the loader at least."""
        raise NotImplementedError

    # Chainer's interface.

    @property
    def batch_size(self):
        return self._spec.batch_size

    @property
    def repeat(self):
        return self._spec.train

    def reset(self):
        """Rewinds to the very beginning: the same batches come again."""
        if not self.repeat and self._delivered == self._epochs.batches:
            self._delivered = 0  # the next pass of validation is the same: what was made ahead is of use
        else:
            self._rewind(self._epochs.batches_before, b"")

    def __next__(self):
        if not self.repeat and self._delivered == self._epochs.batches:
            raise StopIteration
        x, t = self._make(self._delivered)
        count = self._epochs.count(self._delivered)
        self._delivered += 1
        if count < self.batch_size:
            if self._spec.last_batch != "pad":
                x, t = x[: max(1, count)], t[: max(1, count)]
            if count < len(t):
                t = t.copy()
                t[count:] = -1
        return x[..., :3], t

    def serialize(self, serializer):
        """Saves or restores the position.

        Raises:
            DataError: The snapshot belongs to an iterator over other images or with other settings; it says which.
        """
        settings = self._settings()
        if not isinstance(serializer, Deserializer):
            serializer("settings", np.frombuffer(json.dumps(settings).encode(), np.uint8))
            serializer("state", np.frombuffer(self._get_state(), np.uint8))
            serializer("delivered", self._delivered)
            return
        stored = serializer("settings", None)
        if stored is None:  # load_npz(strict=False) of a snapshot without this iterator
            return
        _compare({**defaults(), **json.loads(np.asarray(stored).tobytes())}, settings)
        self._rewind(int(serializer("delivered", 0)), np.asarray(serializer("state", None)).tobytes())

    def _rewind(self, delivered, state):
        self._delivered = delivered
        self._set_state(state)
        self._restart()

    def _settings(self):
        """The settings that a snapshot must agree with. Not the dtype: a FP32 snapshot goes on in FP16, and back."""
        return {
            **json.loads(json.dumps(dataclasses.asdict(self._spec))),
            "number of images": len(self._images),
            "files and labels (SHA-256)": self._images.fingerprint,
            "sizes of the images (SHA-256)": self._images.size_fingerprint,
            **self._loader_settings(),
        }


def _compare(stored, settings):
    """Raises :class:`DataError` that names every setting in which a snapshot differs from this iterator."""
    different = [
        f"{key} is {settings.get(key)} here, {stored.get(key)} in the snapshot"
        for key in {**settings, **stored}
        if settings.get(key) != stored.get(key)
    ]
    if different:
        raise DataError(f"the snapshot's position belongs to other data or settings: {'; '.join(different)}")
