"""DALI as a Chainer iterator."""

import numpy as np

from mixprec.data.data_error import DataError
from mixprec.data.loaders.augmentation import DrawnBatches, parts_of
from mixprec.data.loaders.device_batches import DeviceBatches
from mixprec.data.loaders.encoded import EncodedBatches
from mixprec.data.loaders.failed_images import failed_images, images_of
from mixprec.data.loaders.iterator import ImageIterator
from mixprec.data.loaders.pipeline import DaliDevice, define_pipeline, require_dali
from mixprec.data.loaders.readers import labels_of
from mixprec.data.sources.image_check import image_problem
from mixprec.data.sources.shards import ImageShards

_UNMAPPED = "File mapping failed: "
_KEPT = 4  # batches on a GPU that the host may be ahead


class DaliIterator(ImageIterator):
    """Batches made by NVIDIA DALI: arrays of NumPy, or of CuPy on a GPU.

    With a GPU, images are decoded by its hardware decoder if it has one, otherwise by the GPU and the CPU together; or
    by the CPU alone. The rest runs on the GPU. JPEGs decoded by a GPU differ slightly from a CPU's pixels. Arrays are
    valid in CuPy's current stream, see :class:`~mixprec.data.loaders.device_batches.DeviceBatches`.

    Files are shuffled as a whole for each epoch. For shard files, the order of the files is shuffled, and within it
    images among ``shuffle_window`` of them, which DALI keeps in memory or mapped to it. With ``num_shards`` or
    ``repeats`` above 1, images of any source are shuffled as a whole, in the order of the Pillow loader, and read by
    threads of Python.

    Args:
        images (ImageFiles or ImageShards): Source of the images.
        spec (BatchSpec): As for :class:`~mixprec.data.loaders.iterator.ImageIterator`.
        delivery (Delivery): As for :class:`~mixprec.data.loaders.iterator.ImageIterator`.
        device_id (int or None): Number of the GPU; None means the CPU, and ignores ``decode``.
        decode (str): ``'gpu'`` or ``'cpu'``.

    Raises:
        DataError: As for :class:`~mixprec.data.loaders.iterator.ImageIterator`; or DALI is missing, or has no GPU.

    Example:
        >>> from mixprec.data import BatchSpec, Crop, Delivery, DaliIterator, open_images
        >>> images = open_images("data/digits/train")  # doctest: +SKIP
        >>> spec = BatchSpec(batch_size=64, train=True, crop=Crop(size=32), seed=0)
        >>> iterator = DaliIterator(images, spec, Delivery(dtype="float32"), device_id=0)  # doctest: +SKIP
        >>> x, t = iterator.next()  # doctest: +SKIP
    """

    def __init__(self, images, spec, delivery, *, device_id=None, decode="gpu"):
        super().__init__(images, spec, delivery)
        self._device = DaliDevice(device_id=device_id, decode=decode)
        self._device.validate()
        self._dali_version = require_dali().__version__
        self._on_device = None if device_id is None else DeviceBatches(device_id, _KEPT)
        self._pipeline = None
        self._checkpoint = None  # after the last batch delivered; None: at the very beginning
        # Read in the order of the Pillow loader: DALI has no such shards, and no copies.
        self._is_ordered = spec.shard.num_shards > 1 or spec.augmentation.repeats > 1
        # See read(): independent of the last batches.
        self._made_per_epoch = self._epochs.batches if self._is_ordered else -(-len(images) // self.batch_size)

    def __getstate__(self):
        """Copies continue from the same position, with their own pipeline."""
        return {**vars(self), "_pipeline": None}

    def __next__(self):
        position = self._delivered, self._checkpoint
        try:
            return super().__next__()
        except StopIteration:
            raise
        except BaseException:  # Ctrl-C: the pipeline may be behind a batch that has not come out
            self._pipeline = None
            self._delivered, self._checkpoint = position
            raise

    def _make(self, number):
        batch, checkpoint = self._run(self._take, self._checkpoint)
        if self._epochs.is_new(number + 1):
            for _ in range(self._made_per_epoch - self._epochs.batches):
                _, checkpoint = self._run(self._leave_out, checkpoint)
        self._checkpoint = checkpoint
        return batch

    def _run(self, take, checkpoint):
        """Returns the result of ``take`` for the pipeline's next batch, and the checkpoint after it.

        Args:
            take (callable): Function of a pipeline, which it runs once.
            checkpoint (bytes or None): Checkpoint before the batch.
        """
        if self._pipeline is None:
            self._pipeline = self._new_pipeline(checkpoint)
        try:
            return take(self._pipeline), self._pipeline.checkpoint()
        except RuntimeError as error:
            self._pipeline = None  # another run() would skip the failed batch
            raise DataError(self._explain(error, checkpoint)) from error
        except DataError:
            self._pipeline = None
            raise

    def _take(self, pipeline):
        if self._on_device is not None:
            return self._on_device.take(pipeline)
        pixels, labels = pipeline.run()
        return np.asarray(pixels.as_tensor()), labels_of(labels)

    def _leave_out(self, pipeline):
        if self._on_device is not None:
            self._on_device.leave_out(pipeline)
        else:
            pipeline.run()

    def finalize(self):
        """Ends DALI's threads. The position is kept: a later ``next()`` or ``serialize()`` continues from it."""
        self._pipeline = None

    _restart = finalize

    def make_way(self):
        """Waits for work of the GPU on the batches, whose memory belongs to DALI; then like :meth:`finalize`.

        A batch that is still held must not be used on the GPU afterwards.
        """
        if self._on_device is not None:
            self._on_device.finish()
        self.finalize()

    def _get_state(self):
        return self._checkpoint or b""

    def _set_state(self, state):
        self._checkpoint = state or None

    def _loader_settings(self):
        settings = {"loader": f"DALI {self._dali_version}", "device": "cpu"}
        if self._device.device_id is not None:
            settings |= {"device": "gpu", "decode": self._device.decode}
        if self._spec.train and isinstance(self._images, ImageShards) and not self._is_ordered:
            settings["shuffle_window"] = self._delivery.shuffle_window
        return settings

    def _new_pipeline(self, checkpoint):
        pipeline = define_pipeline(
            self._images,
            self._spec,
            self._device,
            self._delivery,
            checkpoint=checkpoint,
            encoded=self._encoded() if self._is_ordered else None,
            drawn=self._drawn() if parts_of(self._spec.augmentation) else None,
        )
        try:
            pipeline.build()
        except RuntimeError as error:
            raise DataError(f"DALI cannot start: {_reason(error)}") from error
        return pipeline

    def _encoded(self):
        return EncodedBatches(
            self._images,
            self._order,
            first=self._delivered,
            threads=self._delivery.threads,
            ahead=self._delivery.prefetch,
        )

    def _drawn(self):
        if self._is_ordered:
            return DrawnBatches(self._spec, self._order.positions, self._delivered)
        epoch = self._epochs.epoch(self._delivered)
        batch = self._delivered - self._epochs.begin(epoch)
        return DrawnBatches(self._spec, self._made_places, epoch * self._made_per_epoch + batch)

    def _made_places(self, number):
        """Like ``Order.positions``, for the batches of DALI: all are full, and none is left out."""
        epoch, batch = divmod(number, self._made_per_epoch)
        return epoch, range(batch * self.batch_size, (batch + 1) * self.batch_size)

    def _explain(self, error, checkpoint):
        """One line for DALI's error: the file and its fault, as far as they can be found."""
        reason = _reason(error)
        if reason.startswith(_UNMAPPED):  # DALI gives no reason
            path = reason.removeprefix(_UNMAPPED)
            return f"{path}: {image_problem(path) or 'cannot be mapped into memory'}; it was intact when it was scanned"
        # The reader names the file, and runs a batch ahead: the file may belong to another batch than the failed one.
        if (getattr(self._images, "folder", None) or self._images.root) in reason:
            return reason
        try:
            if self._is_ordered:
                _, indices = self._order.indices(self._delivered)
                images = images_of(self._images, indices)
            else:
                images = failed_images(self._images, self._spec, self._delivery.shuffle_window, checkpoint)
        except (RuntimeError, ValueError) as unreadable:
            return f"{reason}: an image of {self._images.root} ({_reason(unreadable)})"
        for name, problem in images:
            if problem:
                return f"{name}: {problem}"
        names = ", ".join(name for name, _ in images[:3])
        more = f" and {len(images) - 3} more" if len(images) > 3 else ""
        return f"{reason}: one of the images {names}{more}"


def _reason(error):
    lines = str(error).rpartition("encountered:")[2].splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)
