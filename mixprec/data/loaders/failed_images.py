"""Finds the image that DALI could not decode, as DALI's error does not name it.

:class:`~mixprec.data.loaders.dali.DaliIterator` calls this after an error of DALI, before it raises its own.
"""

import io

import numpy as np

from mixprec.data.loaders.pipeline import new_pipeline
from mixprec.data.loaders.readers import name_of, read
from mixprec.data.sources.image_check import image_problem
from mixprec.data.sources.tfrecord import read_varint


def failed_images(images, spec, window, checkpoint):
    """Reads the batch after a checkpoint again, and checks each of its images.

    Args:
        images (ImageFiles or ImageShards): Source of the images.
        spec (BatchSpec): Specification of the pipeline that failed.
        window (int): Shuffle window of that pipeline.
        checkpoint (bytes or None): Checkpoint of that pipeline before the batch; None for the first batch.

    Returns:
        list: ``(name, problem)`` of each image; the problem is one line, or None.

    Raises:
        RuntimeError: The images cannot even be read.
    """
    from nvidia import dali

    def new(checkpoint):
        pipeline = new_pipeline(
            lambda: read(dali, images, spec, window), spec, num_threads=1, device_id=None, checkpoint=checkpoint
        )
        pipeline.build()
        return pipeline

    pipeline = new(None)
    if checkpoint is not None:
        pipeline = new(_with_state(pipeline.checkpoint(), checkpoint, b"reader"))
    encoded, _ = pipeline.run()
    found = {}
    for image in encoded:  # an incomplete batch is filled up by repeating an image
        name = name_of(images, image.source_info())
        if name not in found:
            found[name] = image_problem(io.BytesIO(np.asarray(image).tobytes()))
    return list(found.items())


def images_of(images, indices):
    """Checks images of known indices; returns the same list as :func:`failed_images`."""
    return [(images.name(index), image_problem(io.BytesIO(images.read(index)))) for index in indices]


def _with_state(checkpoint, other, operator):
    """Returns a checkpoint with the state of one operator from another pipeline's.

    DALI refuses a checkpoint with other operators. It is a message of Protocol Buffers whose repeated field 1 is an
    operator, with the name in field 1 (DALI, dali/pipeline/dali.proto: Checkpoint).
    """

    def is_wanted(number, content):
        return number == 1 and next(_fields(content))[1] == operator

    (wanted,) = (whole for number, content, whole in _fields(other) if is_wanted(number, content))
    return b"".join(wanted if is_wanted(number, content) else whole for number, content, whole in _fields(checkpoint))


def _fields(message):
    """Yields (number, content, the whole field) of a message's fields, which all have variable length."""
    start = 0
    while start < len(message):
        number, kind = divmod(message[start], 8)
        if kind != 2:
            raise ValueError(f"a field of kind {kind}")
        size, begin = read_varint(message, start + 1, len(message))
        yield number, message[begin : begin + size], message[start : begin + size]
        start = begin + size
