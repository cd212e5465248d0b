"""The task ``augment``: several variants of one training image, made by the loader of a config."""

import contextlib
import dataclasses
import os
import tempfile

import chainer
import numpy as np

from mixprec.app.config.data import Progressive
from mixprec.app.monitor.work.opened import check_index, open_config, open_source
from mixprec.app.monitor.work.thumbnails import png_of_array, thumbnail
from mixprec.app.parts.images import train_iterator
from mixprec.data.sources.folders import ImageFiles

_SIZE = 256


def augment(request, progress):
    """Returns a stored image, and the variants that training sees in ``count`` epochs.

    The config's loader runs on the CPU, over a source that holds only this image. So its crops are drawn as in
    training, but differ from this image's crops there.

    Args:
        request: with ``config``, ``overrides``, ``index`` of a training image, and ``count``.
        progress: called with the share that is done and a text.

    Returns:
        dict: ``index``, ``name``, ``class``; ``original``, a PNG of at most 256 x 256 pixels; ``variants``, a list of
        PNGs of ``data.size`` x ``data.size`` pixels.

    Raises:
        OneLineError: there is no such config or image.
    """
    config = open_config(request.config, request.overrides)
    source = open_source(config, "train")
    check_index(request.index, source)
    variants = []
    with _alone(source, request.index) as one, contextlib.ExitStack() as ending:
        iterator = train_iterator(_of_single_images(config), one, chainer.get_device("@numpy"))
        ending.callback(iterator.finalize)
        for _ in range(request.count):
            x, _ = next(iterator)
            variants.append(png_of_array(pixels(x[0], config.data)))
            progress(len(variants) / request.count, f"{len(variants)} of {request.count} variants")
    return {
        "index": request.index,
        "name": source.name(request.index),
        "class": source.classes[source.labels[request.index]],
        "original": thumbnail(source, request.index, _SIZE),
        "variants": variants,
    }


def pixels(normalized, data):
    """Returns an image as a loader has normalized it, (H, W, 3), as pixels, uint8.

    Args:
        normalized: float16 or float32.
        data: the section of a config, with ``mean`` and ``std``.
    """
    values = normalized.astype(np.float64) * data.std + data.mean
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


@contextlib.contextmanager
def _alone(source, index):
    """Returns a source that holds a single image of another source."""
    labels = source.labels[index : index + 1]
    if isinstance(source, ImageFiles):
        lines = source.line_numbers if source.line_numbers is None else source.line_numbers[index : index + 1]
        yield dataclasses.replace(source, files=(source.files[index],), labels=labels, line_numbers=lines, skipped=())
        return
    # From a shard: a separate file. The loader decodes it in the same way, only with another reader.
    with tempfile.TemporaryDirectory(prefix="mixprec-augment-") as folder:
        with open(os.path.join(folder, "image"), "wb") as file:
            file.write(source.read(index))
        yield ImageFiles(folder, source.classes, ("image",), labels)


def _of_single_images(config):
    """The config for a source of one image: each batch is one, and so is each epoch."""
    data = dataclasses.replace(config.data, threads=1, last_batch="partial", repeats=1)
    training = dataclasses.replace(config.training, batch_size=1)
    return dataclasses.replace(config, data=data, training=training, progressive=Progressive())
