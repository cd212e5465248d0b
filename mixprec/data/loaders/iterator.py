"""Chainer's iterator interface over a loader of images: epochs, and a position that snapshots hold."""

import json

import numpy as np
from chainer.serializer import Deserializer

from mixprec.data.data_error import DataError
from mixprec.data.loaders.order import Order
from mixprec.data.loaders.position import Position
from mixprec.data.loaders.spec import defaults, validate


class ImageIterator(Position):
    """Batches of decoded, augmented and normalized images; the base of all loaders of images.

    A batch is ``(x, t)``: x (B, size, size, 3), RGB, ``(pixel - mean) / std`` with pixels in 0..255, C-contiguous; with
    ``pad_channels`` a view of the first three channels of (B, size, size, 4), the fourth being zero. t int32 (B,).
    Both stay valid for as long as they are kept. Images are turned upright by their EXIF orientation.

    - Training repeats for ever; each epoch has a new order, new random crops (Szegedy et al. 2015, resized to size x
      size) and flips. Shards of one data set with one seed are disjoint in each epoch, and together complete.
    - Validation resizes the shorter side to ``resize``, takes the centre crop, and stops after one pass;
      ``reset()`` rewinds it.

    The batches depend on ``spec``; of ``delivery`` only ``dtype`` affects them, by rounding. A snapshot holds the exact
    position: a fresh iterator with the same images and settings that loads it continues with bit-identical batches.
    Batches made ahead are not part of the position.

    A subclass makes the batches, see :meth:`_make`.

    Args:
        images: Source of the images, for example from :func:`~mixprec.data.sources.folders.scan_folders`.
        spec (BatchSpec): Contents of the batches.
        delivery (Delivery): Delivery of the batches.

    Raises:
        DataError: An argument is impossible, a package that the loader needs is missing, or, from ``next()``, an image
            cannot be decoded.
    """

    def __init__(self, images, spec, delivery):
        validate(spec, len(images), delivery)
        self._images, self._spec, self._delivery = images, spec, delivery
        self._order = Order(spec, len(images))
        self.batch_size, self.repeat = spec.batch_size, spec.train
        super().__init__(spec.epochs(len(images)))

    # The interface of subclasses.

    def _make(self, number):
        """Returns batch ``number`` (from 0, for ever), which follows the last one requested.

        After :meth:`_restart` any number may come first. Batch ``number`` of validation is batch
        ``number % self._epochs.batches``. After an exception, the next request is for the same batch.

        Returns:
            ``(x, t)``: the ``self._epochs.count(number)`` images that count, then possibly others, such as padding, up
            to the batch size; at least one image; with pad, the full size. x as in the class's description, or its four
            channels. t (B,).
        """
        raise NotImplementedError

    def _restart(self):
        """Discards batches made ahead: the position has changed to ``self._delivered`` and the loader's state."""
        raise NotImplementedError

    def finalize(self):
        """Ends threads and processes. The position is kept: ``next()`` or ``serialize()`` continue from it."""
        raise NotImplementedError

    def _get_state(self):
        """Returns the state, as bytes, needed beside the number of batches to continue after the last one delivered."""
        return b""

    def _set_state(self, state):
        """Restores a state of :meth:`_get_state`; ``b""`` is the very beginning."""

    def _loader_settings(self):
        """Returns a dict of further settings that a snapshot must agree with: at least the name of the loader."""
        raise NotImplementedError

    # Chainer's interface.

    def reset(self):
        """Rewinds to the very beginning: the same batches come again."""
        if not self.repeat and self._delivered == self._epochs.batches:
            self._delivered = 0  # the next pass of validation is the same: batches made ahead can be used
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
        """The settings that a snapshot must agree with. Not the dtype: FP32 snapshots may resume in FP16, and back."""
        return {
            **self._spec.settings(),
            "number of images": len(self._images),
            "files and labels (SHA-256)": self._images.fingerprint,
            "sizes of the images (SHA-256)": self._images.size_fingerprint,
            **self._loader_settings(),
        }


def _compare(stored, settings):
    """Raises :class:`DataError` that names every setting in which a snapshot differs from this iterator."""
    keys = [key for key in {**settings, **stored} if settings.get(key) != stored.get(key)]
    different = [f"{key} is {settings.get(key)} here, {stored.get(key)} in the snapshot" for key in keys]
    if different:
        raise DataError(f"the snapshot's position belongs to other data or settings: {'; '.join(different)}")
