"""Random numbers in place of images, on the device from the start, to train without a loader."""

import chainer
import numpy as np

from mixprec.bounds import INT32, MANY, SIDE
from mixprec.data.data_error import DataError
from mixprec.data.loaders.epochs import LAST_BATCH, Epochs
from mixprec.data.loaders.position import Position
from mixprec.data.loaders.spec import DTYPES


class SyntheticIterator(Position):
    """The same batch of random numbers again and again, in Chainer's iterator interface; it repeats for ever.

    A batch is ``(x, t)``, as from the loaders of images: x (B, size, size, 3), standard normal, C-contiguous; with
    ``pad_channels`` a view of the first three channels of (B, size, size, 4), the fourth being zero. t int32 (B,),
    uniform. Both lie on the device: they were sent there once, and a step uploads nothing. Do not write to them.

    Args:
        images (int): Images in an epoch, of all shards.
        batch_size (int): Images a batch, 1 to the number of images in the smallest shard.
        size (int): Height and width in pixels.
        classes (int): Labels are 0 to classes - 1.
        dtype (str): ``'float16'`` or ``'float32'``.
        device: Chainer's device or what :func:`chainer.get_device` takes.
        seed (int): 0 to 2^32 - 1; fixes the numbers.
        pad_channels (bool): A fourth channel of zeros in memory.
        last_batch (str): How an epoch ends, see :class:`~mixprec.data.loaders.epochs.Epochs`.
        shard (int): Which part of each batch of all shards this is.
        num_shards (int): Into how many parts a batch is divided.
        before (pair of int): Epochs and batches of earlier stages of training.

    Raises:
        DataError: An argument is impossible.
    """

    repeat = True

    def __init__(
        self,
        images,
        batch_size,
        *,
        size,
        classes,
        dtype,
        device,
        seed,
        pad_channels=False,
        last_batch="partial",
        shard=0,
        num_shards=1,
        before=(0, 0),
    ):
        checks = (
            (images <= INT32, f"images {images}: must be at most {INT32}"),
            (num_shards >= 1, f"num_shards {num_shards}: must be at least 1"),
            (0 <= shard < num_shards, f"shard {shard}: must be 0 to num_shards - 1, {num_shards - 1}"),
            (
                1 <= batch_size <= images // max(1, num_shards),
                f"batch_size {batch_size}: must be 1 to {images // max(1, num_shards)}, the number of images in the "
                "smallest shard",
            ),
            (1 <= size <= SIDE, f"size {size}: must be 1 to {SIDE}"),
            (1 <= classes <= MANY, f"classes {classes}: must be 1 to {MANY}"),
            (dtype in DTYPES, f"dtype {dtype!r}: must be 'float16' or 'float32'"),
            (0 <= seed < 2**32, f"seed {seed}: must be 0 to 2^32 - 1"),
            (last_batch in LAST_BATCH, f"last_batch {last_batch!r}: must be one of {', '.join(LAST_BATCH)}"),
        )
        for possible, message in checks:
            if not possible:
                raise DataError(message)
        self.batch_size = batch_size
        super().__init__(
            Epochs(
                images=images,
                batch_size=batch_size,
                last_batch=last_batch,
                shard=shard,
                num_shards=num_shards,
                epochs_before=before[0],
                batches_before=before[1],
            )
        )
        random = np.random.default_rng(seed)
        x = np.zeros((batch_size, size, size, 4 if pad_channels else 3), dtype)
        for image in x:
            image[..., :3] = random.standard_normal((size, size, 3), np.float32)
        t = random.integers(0, classes, batch_size, dtype=np.int32)
        device = chainer.get_device(device)
        self._x = device.send(x)[..., :3]
        self._t = device.send(t)
        last = self._epochs.count(before[1] + self._epochs.batches - 1)  # the only batch of an epoch that may differ
        padded = np.where(np.arange(batch_size) < last, t, np.int32(-1))
        kept = batch_size if last_batch == "pad" else max(1, last)
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
