"""The loader of a machine: DALI where it is installed and starts, Pillow elsewhere."""

import os

import chainer
from chainer import backend

from mixprec.base.announcements import announce
from mixprec.data.data_error import DataError
from mixprec.data.loaders.dali import DaliIterator
from mixprec.data.loaders.pillow import PillowIterator
from mixprec.data.loaders.pipeline import require_dali
from mixprec.data.loaders.spec import BatchSpec, Delivery
from mixprec.data.sources.opening import open_images

_THREADS = 4  # Delivery's default, where there are as many cores


def image_iterator(images, batch_size, crop, *, train, seed=0, delivery=None, device=None, **spec):
    """Returns an iterator over images: a ``DaliIterator`` where DALI is installed, otherwise a ``PillowIterator``.

    Args:
        images (path, ImageFiles or ImageShards): Source of the images; a path is opened by :func:`open_images`.
        batch_size (int): Images per batch, 1 to the number of images.
        crop (Crop): Size in pixels, and the part of an image.
        train (bool): Training or validation.
        seed (int): 0 to 2^32 - 1; fixes order and augmentation.
        delivery (Delivery or None): Delivery of the batches; None means float32, by at most four threads.
        device: Chainer's device that the batches go to, or its name, as ``"@cupy:0"``; None means the CPU. DALI makes
            them on a GPU; Pillow's are sent by the converter.

        **spec: Other attributes of :class:`~mixprec.data.loaders.spec.BatchSpec`, such as ``normalization``.

    Returns:
        ImageIterator: The converter of its batches is :data:`mixprec.data.to_nchw`.

    Raises:
        DataError: An argument is impossible, or the images have a fault.

    Example:
        >>> from mixprec.data import Crop, image_iterator, to_nchw
        >>> iterator = image_iterator("data/digits/train", 64, Crop(size=32), train=True)  # doctest: +SKIP
        >>> x, t = to_nchw(iterator.next())  # doctest: +SKIP
    """
    if isinstance(images, str | os.PathLike):
        images = open_images(images)
    if delivery is None:
        delivery = Delivery(dtype="float32", threads=min(_THREADS, len(os.sched_getaffinity(0))))
    device = None if device is None else chainer.get_device(device)
    spec = BatchSpec(batch_size=batch_size, train=train, crop=crop, seed=seed, **spec)
    loader, where = loader_class(), {}
    if loader is DaliIterator and isinstance(device, backend.GpuDevice):
        where["device_id"] = device.device.id
    return loader(images, spec, delivery, **where)


def loader_class():
    """Returns ``DaliIterator``, or ``PillowIterator`` where DALI is missing, which is announced with the reason."""
    try:
        require_dali()
    except DataError as error:
        announce("data.loader auto: images are decoded by Pillow, which is slower: %s", str(error))
        return PillowIterator
    return DaliIterator
