"""The image that DALI could not decode: its error does not name it.

:class:`~mixprec.data.loaders.dali.DaliIterator` calls this after an error of DALI, before it raises its own.
"""

import io

import numpy as np

from mixprec.data.loaders.pipeline import new_pipeline
from mixprec.data.loaders.readers import name_of, read
from mixprec.data.sources.image_check import image_problem
from mixprec.data.sources.tfrecord import read_varint


def failed_images(images, spec, window, checkpoint):
    """Reads the batch once more that comes after a checkpoint, and looks at each of its images.

    Args:
        images (ImageFiles or ImageShards): What is read.
        spec (BatchSpec): As of the pipeline that failed.
        window (int): Likewise.
        checkpoint (bytes or None): Of that pipeline, before the batch; None: the first one.

    Returns:
        list: ``(name, problem)`` of each image; what is wrong with it in one line, or None.

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
    """Looks at images of known indices; returns the same list as :func:`failed_images`."""
    return [(images.name(index), image_problem(io.BytesIO(images.read(index)))) for index in indices]


def _with_state(checkpoint, other, operator):
    """Returns a checkpoint with the state of one operator from another pipeline's.

    DALI refuses a checkpoint with other operators. It is a message of Protocol Buffers in which field 1, repeated, is
    an operator, and field 1 of that the name (DALI, dali/pipeline/dali.proto: Checkpoint).
    """

    def is_wanted(number, content):
        return number == 1 and next(_fields(content))[1] == operator

    (wanted,) = (whole for number, content, whole in _fields(other) if is_wanted(number, content))
    return b"".join(wanted if is_wanted(number, content) else whole for number, content, whole in _fields(checkpoint))


def _fields(message):
    """Yields (number, content, the whole field) of a message's fields, which all are of variable length."""
    start = 0
    while start < len(message):
        number, kind = divmod(message[start], 8)
        if kind != 2:
            raise ValueError(f"a field of kind {kind}")
        size, place = read_varint(message, start + 1, len(message))
        yield number, message[place : place + size], message[start : place + size]
        start = place + size
