"""DALI's readers for each source, with the order of the images and the source of their labels."""

import numpy as np

from mixprec.data.data_error import DataError, printable
from mixprec.data.sources.shards import ImageShards
from mixprec.data.sources.tfrecord import IMAGE, LABEL


def read(dali, images, spec, window):
    """Adds a reader to the DALI graph that is being defined.

    It is for a data set that is not divided into shards. DALI fills up the last batch by repeating the last image.

    Training, from files: all of them are shuffled anew for each epoch. From shard files: their order is shuffled anew
    for each epoch; they are read one after the other, and the next image is drawn from a window. Validation has the
    images in their order.

    Args:
        dali (module): ``nvidia.dali``.
        images (ImageFiles or ImageShards): Source of the images.
        spec (BatchSpec): Training or validation, seed.
        window (int): Images among which the next one from shard files is drawn.

    Returns:
        ``(encoded, labels)``: nodes of the graph, for :func:`labels_of`.
    """
    common = {"name": "reader", "pad_last_batch": True}
    if spec.train:
        common |= {"shuffle_after_epoch": True, "shuffle_after_epoch_seed": spec.dali_seed}
    else:
        common |= {"stick_to_shard": True}
    if not isinstance(images, ImageShards):
        return tuple(dali.fn.readers.file(files=images.paths(), labels=images.labels.tolist(), **common))
    if spec.train:
        common |= {"random_shuffle": True, "initial_fill": window, "seed": spec.dali_seed}
    if images.format == "webdataset":
        found = dali.fn.readers.webdataset(
            paths=list(images.shards),
            index_paths=images.index_files(),
            ext=["jpg", "cls"],  # in our index files images of all kinds are called jpg
            missing_component_behavior="error",
            **common,
        )
        return tuple(found)
    tfrecord = dali.tfrecord
    found = dali.fn.readers.tfrecord(
        path=list(images.shards),
        index_path=images.index_files(),
        features={
            IMAGE: tfrecord.FixedLenFeature((), tfrecord.string, ""),
            LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        },
        **common,
    )
    return found[IMAGE], dali.fn.cast(found[LABEL], name="labels", dtype=dali.types.INT32)


def labels_of(batch):
    """Returns the labels, int32 (B,), from a reader's output on the host.

    Args:
        batch (TensorListCPU): int32 (1,) each; for WebDataset the bytes of a decimal number.
    """
    from nvidia.dali import types

    if batch.dtype == types.UINT8:
        return np.array([int(bytes(np.asarray(text))) for text in batch], np.int32)
    return np.asarray(batch.as_tensor())[:, 0]


def name_of(images, source_info):
    """Returns the name for messages of the image with DALI's ``source_info``.

    That is the path of a file; ``path:offset:member`` in an archive; ``path at index offset`` in a TFRecord file.
    """
    if not isinstance(images, ImageShards):
        return printable(source_info)
    if images.format == "webdataset":
        path, offset, _ = source_info.rsplit(":", 2)
        offsets = images.offsets
    else:
        path, _, offset = source_info.rpartition(" at index ")
        offsets = np.array([int(line.split()[0]) for line in images.lines])
    found = np.flatnonzero((offsets == int(offset)) & (images.parts == images.shards.index(path)))
    if len(found) != 1:
        raise DataError(f"{printable(source_info)}: not among the samples that were scanned")
    return images.name(found[0])
