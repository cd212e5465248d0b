"""The images of a config: their sources, and the iterators over them.

The training command calls :func:`open_sources` after trying the network; the trainer makes the iterators.
"""

import functools
import os

from mixprec.app.parts.devices import on_gpu
from mixprec.app.parts.stages import epochs_of, stages_of
from mixprec.app.parts.training_loss import class_weights
from mixprec.base import files
from mixprec.base.messages import beside, counted, encoding_hint
from mixprec.data.data_error import DataError
from mixprec.data.digit_images import FOLDER as DIGITS
from mixprec.data.loaders.augmentation import Augmentation, described
from mixprec.data.loaders.batch import to_nchw, to_padded_nchw
from mixprec.data.loaders.dali import DaliIterator
from mixprec.data.loaders.epochs import Epochs, Shard
from mixprec.data.loaders.loader_choice import loader_class
from mixprec.data.loaders.pillow import PillowIterator
from mixprec.data.loaders.pipeline import require_dali
from mixprec.data.loaders.spec import BatchSpec, Crop, Delivery, Normalization
from mixprec.data.loaders.staged import StagedIterator
from mixprec.data.loaders.synthetic import SyntheticIterator
from mixprec.data.mixing import Mixing
from mixprec.data.sources.classes import check_classes, check_labels, check_same_classes, write_classes
from mixprec.data.sources.opening import open_images

_CLASSES = "classes.txt"
_SKIPPED = "skipped.txt"


def open_sources(config, ranks=1):
    """Scans the images of a config, and checks that they fit each other and the model.

    Args:
        config: :class:`mixprec.app.config.Config`.
        ranks: number of processes that train together.

    Returns:
        ``(train, val)``: from :func:`mixprec.data.sources.opening.open_images`. With synthetic data ``train`` has only
        a length, and ``val`` is ``None``.

    Raises:
        DataError: they do not fit, or an image is bad; the message is one line that names the cause.
    """
    data = config.data
    if data.format == "synthetic":
        train, val = range(data.synthetic_images), None
    else:
        for name, path in (("data.train", data.train), ("data.val", data.val)):
            if not os.path.exists(path):  # both before the first is scanned, which may take minutes
                made = f"; this writes them: mixprec digits {DIGITS}" if path.startswith(f"{DIGITS}/") else ""
                where = f"{name} says where the images are{made}{encoding_hint(path)}"
                raise DataError(f"{path}: no such file or folder; {where}{beside(path)}")
        train, val = (open_images(path, data.format, data.root, data.on_error) for path in (data.train, data.val))
    check_sources(config, train, val, ranks)
    return train, val


def check_sources(config, train, val, ranks=1):
    """Checks that the images of a config fit each other and the model, and are enough for a batch.

    Args:
        config: :class:`mixprec.app.config.Config`.
        train: first result of :func:`open_sources`.
        val: second result of :func:`open_sources`.
        ranks: number of processes that train together.

    Raises:
        DataError: they do not fit.
    """
    data = config.data
    if val is not None:
        check_same_classes(train, val)
        for source in (train, val):
            check_labels(source, config.model.classes)
    class_weights(config, train)
    batch_sizes = [("training.batch_size", config.training.batch_size)]
    batch_sizes += [("one of progressive.batch_sizes", batch_size) for batch_size in config.progressive.batch_sizes]
    for name, batch_size in batch_sizes:
        if len(train) < batch_size * ranks:
            where = "data.synthetic_images" if val is None else data.train
            each = "" if ranks == 1 else f" for each of {ranks} ranks"
            raise DataError(f"{where}: {counted(len(train), 'image')}, but {name} is {batch_size}{each}")
    if val is not None and len(val) < ranks:
        raise DataError(
            f"{data.val}: {counted(len(val), 'image')}, which is less than the {ranks} ranks that evaluate them"
        )


def train_iterator(config, images, device, rank=0, ranks=1):
    """Returns the iterator over the training images, the first of :func:`open_sources`; it repeats for ever.

    Args:
        config: :class:`mixprec.app.config.Config`.
        images: source of the images.
        device: Chainer's device; on a GPU DALI delivers arrays of CuPy.
        rank: rank of the process, which gets its part of each joint batch.
        ranks: number of processes.
    """
    epochs, stages = epochs_of(config, len(images), ranks), stages_of(config)
    make = [
        functools.partial(_of_stage, config, images, device, stage, Shard.of(each, shard=rank))
        for stage, each in zip(stages, epochs.epochs, strict=True)
    ]
    return make[0]() if len(make) == 1 else StagedIterator(epochs, make)


def _of_stage(config, images, device, stage, shard):
    data = config.data
    spec = BatchSpec(
        batch_size=stage.batch_size,
        train=True,
        crop=Crop(size=stage.size, crop_area=data.crop_area, flip=data.flip),
        normalization=Normalization.of(data),
        seed=config.training.seed,
        last_batch=data.last_batch,
        shard=shard,
        augmentation=Augmentation.of(data),
    )
    if data.format == "synthetic":
        return SyntheticIterator(len(images), spec, _delivery(config), classes=config.model.classes, device=device)
    return _loader(data, device)(images, spec, _delivery(config))


def random_batch(config, size, batch_size, device):
    """Returns a batch of random numbers as an iterator would deliver it, see :class:`SyntheticIterator`.

    Args:
        config: :class:`mixprec.app.config.Config`.
        size: height and width of the images in pixels.
        batch_size: number of images.
        device: Chainer's device.
    """
    spec = BatchSpec(batch_size=batch_size, train=True, crop=Crop(size=size), seed=config.training.seed)
    classes = config.model.classes
    return SyntheticIterator(batch_size, spec, _delivery(config), classes=classes, device=device).next()


def val_epochs(config, images, *, one_shape, ranks=1):
    """Returns the division of the validation images into batches: :class:`~mixprec.data.loaders.epochs.Epochs`.

    Args:
        config: :class:`mixprec.app.config.Config`.
        images: number of validation images.
        one_shape: as for :func:`val_iterator`.
        ranks: number of processes that evaluate together.
    """
    batch_size = min(config.training.batch_size, images // ranks)
    pads = one_shape and not config.training.has_own_loss  # which need not know of padding
    last_batch = "pad" if pads else "partial"
    return Epochs(images=images, batch_size=batch_size, last_batch=last_batch, num_shards=ranks)


def val_iterator(config, images, device, *, one_shape, rank=0, ranks=1):
    """Returns the iterator over the validation images, the second of :func:`open_sources`; it ends after one pass.

    Args:
        config: :class:`mixprec.app.config.Config`.
        images: source of the images.
        device: Chainer's device.
        one_shape: whether the last batch is filled up, with labels of -1, so that one graph serves all batches.
        rank: as for :func:`train_iterator`.
        ranks: as for :func:`train_iterator`.
    """
    data, epochs = config.data, val_epochs(config, len(images), one_shape=one_shape, ranks=ranks)
    spec = BatchSpec(
        batch_size=epochs.batch_size,
        train=False,
        crop=Crop(size=data.val_size or data.size, resize=data.resize),
        normalization=Normalization.of(data),
        seed=config.training.seed,
        last_batch=epochs.last_batch,
        shard=Shard.of(epochs, shard=rank),
    )
    return _loader(data, device)(images, spec, _delivery(config))


def converter_of(config):
    """Returns the converter for batches of these iterators."""
    return to_padded_nchw if config.data.pad_channels else to_nchw


def mixing_of(config, rank=0):
    """Returns the :class:`~mixprec.data.mixing.Mixing` of a config, or ``None``."""
    training = config.training
    if not (training.mixup or training.cutmix):
        return None
    return Mixing(
        training.mixup,
        training.cutmix,
        cutmix_probability=training.cutmix_probability,
        probability=training.mix_probability,
        seed=training.seed,
        rank=rank,
    )


def describe(config, train, val, device):
    """Returns a description of the images, the loader and the mixing, as a list of lines."""
    lines, mixing = _described_sources(config, train, val, device), mixing_of(config)
    return lines if mixing is None else [*lines, f"mixing: {mixing}"]


def _described_sources(config, train, val, device):
    data = config.data
    if val is None:
        return [f"data: random numbers instead of {len(train)} images, the same in each step; no validation"]
    classes = counted(len(train.classes), "class", "classes")
    lines = [f"data: {len(train)} training and {counted(len(val), 'validation image')} in {classes}"]
    skipped = sum(len(source.skipped) for source in (train, val))
    if skipped:
        lines.append(f"skipped: {counted(skipped, 'file')}, not intact images, listed in {_SKIPPED}")
    augmentation = described(data)
    if augmentation:
        lines.append(f"augmentation: {'; '.join(augmentation)}")
    if _loader_class(data) is PillowIterator:
        processes = counted(min(data.threads, config.training.batch_size), "process", "processes")
        return [*lines, f"loader: Pillow in {processes}"]
    where = "on the CPU"
    if on_gpu(device):
        where = "on the GPU" if data.decode == "gpu" else "on the CPU, and augmented on the GPU"
    return [*lines, f"loader: DALI {require_dali().__version__}, {data.threads} threads, images are decoded {where}"]


def check_records(out, train):
    """Raises :class:`DataError` if an earlier run in a results folder had other classes."""
    path = os.path.join(out, _CLASSES)
    if _has_images(train) and os.path.exists(path):
        check_classes(path, train)


def write_records(out, train, val):
    """Writes the names of the classes, which later use of the model needs, and the images that were left out."""
    if not _has_images(train):
        return
    write_classes(os.path.join(out, _CLASSES), train)
    lines = [f"{name}: {reason}\n" for source in (train, val) for name, reason in source.skipped]
    path = os.path.join(out, _SKIPPED)
    if lines:
        files.write_text(path, "".join(lines))
    elif os.path.exists(path):  # of an earlier run, whose bad images are good now
        os.remove(path)


def _delivery(config):
    dtype = "float16" if config.precision.compute == "float16" else "float32"
    return Delivery.of(config.data, dtype=dtype)


def _loader(data, device):
    loader = _loader_class(data)
    if loader is PillowIterator or not on_gpu(device):
        return loader
    return functools.partial(loader, device_id=device.device.id, decode=data.decode)


def _loader_class(data):
    if data.loader == "pillow":
        return PillowIterator
    if data.loader == "auto":
        return loader_class()
    try:
        require_dali()
    except DataError as error:
        raise DataError(f"data.loader dali: {error}") from error
    return DaliIterator


def _has_images(source):
    return not isinstance(source, range)
