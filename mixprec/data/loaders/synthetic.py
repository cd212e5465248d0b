"""Random numbers instead of images, on the device from the start, to train without a loader."""

import chainer
import numpy as np

from mixprec.base.bounds import INT32, MANY
from mixprec.data.data_error import DataError
from mixprec.data.loaders.position import Position
from mixprec.data.loaders.spec import validate


class SyntheticIterator(Position):
    """The same batch of random numbers again and again, in Chainer's iterator interface; it repeats for ever.

    A batch is ``(x, t)``, as from the loaders of images: x (B, size, size, 3), standard normal, C-contiguous; with
    ``pad_channels`` a view of the first three channels of (B, size, size, 4), the fourth being zero. t int32 (B,),
    uniform. Both lie on the device: they were sent there once, and a step uploads nothing. Do not write to them.

    Args:
        images (int): Images in an epoch, of all shards.
        spec (BatchSpec): Size and number of images in a batch, the seed, and the division into epochs.
        delivery (Delivery): The dtype, and whether there is a fourth channel of zeros in memory.
        classes (int): Labels are 0 to classes - 1.
        device: Chainer's device, or an argument of :func:`chainer.get_device`.

    Raises:
        DataError: An argument is impossible.

    Example:
        >>> from mixprec.data import BatchSpec, Crop, Delivery, SyntheticIterator
        >>> spec, delivery = BatchSpec(batch_size=4, train=True, crop=Crop(size=8), seed=0), Delivery(dtype="float32")
        >>> x, t = SyntheticIterator(100, spec, delivery, classes=10, device="@numpy").next()
        >>> x.shape, t.dtype.name
        ((4, 8, 8, 3), 'int32')
    """

    repeat = True

    def __init__(self, images, spec, delivery, *, classes, device):
        if images > INT32:
            raise DataError(f"images {images}: must be at most {INT32}")
        validate(spec, images, delivery, "the number of images in the smallest shard")
        if not 1 <= classes <= MANY:
            raise DataError(f"classes {classes}: must be 1 to {MANY}")
        batch_size, size = spec.batch_size, spec.crop.size
        self.batch_size = batch_size
        super().__init__(spec.epochs(images))
        random = np.random.default_rng(spec.seed)
        x = np.zeros((batch_size, size, size, 4 if delivery.pad_channels else 3), delivery.dtype)
        for image in x:
            image[..., :3] = random.standard_normal((size, size, 3), np.float32)
        t = random.integers(0, classes, batch_size, dtype=np.int32)
        device = chainer.get_device(device)
        self._x = device.send(x)[..., :3]
        self._t = device.send(t)
        # Only the last batch of an epoch may differ.
        last = self._epochs.count(spec.shard.batches_before + self._epochs.batches - 1)
        padded = np.where(np.arange(batch_size) < last, t, np.int32(-1))
        kept = batch_size if spec.last_batch == "pad" else max(1, last)
        self._last_t = self._t[:last] if kept == last else device.send(padded[:kept])

    def reset(self):
        """Rewinds to the very beginning."""
        self._delivered = self._epochs.batches_before

    def __next__(self):
        self._delivered += 1
        t = self._last_t if self.is_new_epoch else self._t
        return self._x[: len(t)], t

    def serialize(self, serializer):
        """Saves or restores the position."""
        self._delivered = int(serializer("delivered", self._delivered))
