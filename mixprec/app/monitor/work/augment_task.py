"""The task ``augment``: what the loader of a config makes of one training image, several times."""

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
    """Returns an image as it is stored, and as training sees it in as many epochs.

    The loader is that of the config, on the CPU, over a source that holds this image alone. So its crops are drawn as
    in training, and are others than those that this image gets there.

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
    """Gives a source that holds one image of another one."""
    labels = source.labels[index : index + 1]
    if isinstance(source, ImageFiles):
        lines = source.line_numbers if source.line_numbers is None else source.line_numbers[index : index + 1]
        yield dataclasses.replace(source, files=(source.files[index],), labels=labels, line_numbers=lines, skipped=())
        return
    # Of a shard: a file of its own. The loader decodes it likewise, and only its reader is another one.
    with tempfile.TemporaryDirectory(prefix="mixprec-augment-") as folder:
        with open(os.path.join(folder, "image"), "wb") as file:
            file.write(source.read(index))
        yield ImageFiles(folder, source.classes, ("image",), labels)


def _of_single_images(config):
    """The config for a source of one image: each batch is one, and so is each epoch."""
    data = dataclasses.replace(config.data, threads=1, last_batch="partial", repeats=1)
    training = dataclasses.replace(config.training, batch_size=1)
    return dataclasses.replace(config, data=data, training=training, progressive=Progressive())
