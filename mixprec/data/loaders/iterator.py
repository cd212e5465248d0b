"""Chainer's iterator interface over a loader of images: epochs, and a position that snapshots hold."""

import json

import numpy as np
from chainer.serializer import Deserializer

from mixprec.data.data_error import DataError
from mixprec.data.loaders.order import Order
from mixprec.data.loaders.position import Position
from mixprec.data.loaders.spec import defaults, validate


class ImageIterator(Position):
    """Batches of decoded, augmented and normalized images; the part that all loaders have in common.

    A batch is ``(x, t)``: x (B, size, size, 3), RGB, ``(pixel - mean) / std`` with pixels in 0..255, C-contiguous; with
    ``pad_channels`` a view of the first three channels of (B, size, size, 4), the fourth being zero. t int32 (B,).
    Both stay valid for as long as they are kept. Images are turned upright as their EXIF orientation says.

    - Training repeats for ever; each epoch has a new order, new random crops (Szegedy et al. 2015, resized to size x
      size) and flips. Shards of one data set with one seed are disjoint in each epoch, and together complete.
    - Validation resizes the shorter side to ``resize``, takes the centre crop, and stops after one pass;
      ``reset()`` rewinds it.

    The batches depend on ``spec``, not on ``delivery``, but that ``dtype`` rounds them. A snapshot holds the
    exact position: a fresh iterator with the same images and settings that loads it goes on with bit-identical batches.
    What is made ahead is no part of the position.

    A subclass makes the batches, see :meth:`_make`.

    Args:
        images: What to read: a source such as :func:`~mixprec.data.sources.folders.scan_folders` returns.
        spec (BatchSpec): What is in the batches.
        delivery (Delivery): How they are delivered.

    Raises:
        DataError: An argument is impossible, what the loader needs is missing, or, from ``next()``, an image cannot be
            decoded.
    """

    def __init__(self, images, spec, delivery):
        validate(spec, len(images), delivery)
        self._images, self._spec, self._delivery = images, spec, delivery
        self._order = Order(spec, len(images))
        self.batch_size, self.repeat = spec.batch_size, spec.train
        super().__init__(spec.epochs(len(images)))

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
            **self._spec.settings(),
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
