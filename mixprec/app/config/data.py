"""Config sections about the images: source, decoding, augmentation, and sizes over time."""

import operator
from dataclasses import dataclass

from mixprec.base.bounds import INT32, MANY, SEVERAL, SIDE
from mixprec.base.declaration import PATH, Limit, between, key
from mixprec.data.loaders.augmentation import Augmentation
from mixprec.data.loaders.spec import Decoding, Normalization

FORMATS = ("auto", "folders", "list", "tfrecord", "webdataset", "synthetic")


@dataclass(frozen=True, kw_only=True)
class _Images:
    """The images, and the part of them that is used."""

    format: str = key(
        "One of the [sources](data.md#sources): folders of classes, a list, shards, or synthetic: random numbers on "
        "the device. auto detects it.",
        "auto",
        choices=FORMATS,
        aliases=("kind", "type", "source"),
    )
    train: str | None = key(
        "Path of the training images, relative to the working directory.", None, limit=PATH, aliases=("train_dir",)
    )
    val: str | None = key(
        "Path of the validation images, like train.", None, limit=PATH, aliases=("validation", "test")
    )
    root: str | None = key(
        "The folder that the paths in lists are relative to; null: the folder of the list.", None, limit=PATH
    )
    synthetic_images: int | None = key(
        "Number of synthetic training images in an epoch.", None, limit=between(1, INT32)
    )
    on_error: str = key(
        "[Bad files](data.md#good-and-bad-files): stop names them before training starts; skip leaves them out, and "
        "lists them in skipped.txt.",
        "stop",
        choices=("stop", "skip"),
    )
    loader: str = key(
        "The library that decodes: DALI, or Pillow, slower, in separate processes; auto: DALI if it is installed.",
        "auto",
        choices=("auto", "dali", "pillow"),
        aliases=("backend",),
    )
    size: int = key(
        "Height and width of the network's input in training, in pixels.",
        224,
        limit=between(8, SIDE),
        aliases=("crop_size", "train_size"),
    )
    val_size: int | None = key(
        "The same in validation; null: size. A larger one makes up for crops that enlarge objects (Touvron et al. "
        "2019).",
        None,
        limit=between(8, SIDE),
    )
    resize: int = key(
        "Validation: the shorter side, in pixels, before the centre is cropped to val_size.",
        256,
        limit=between(8, SIDE),
    )
    crop_area: tuple[float, float] = key(
        "Training: smallest and largest share of the image's area that a random crop takes.",
        (0.08, 1.0),
        limit=Limit("with 0.0001 <= first <= second <= 1", lambda value: 1e-4 <= value[0] <= value[1] <= 1),
    )
    flip: bool = key("Training: mirror left to right with probability 1/2.", True)


@dataclass(frozen=True, kw_only=True)
class _Batches:
    """Properties of batches, apart from the pixels."""

    pad_channels: bool = key(
        "Whether there is a fourth channel of zeros in memory, so that Tensor cores read aligned rows of pixels.", False
    )
    last_batch: str = key(
        "The [last batch](data.md#epochs-order-resume) of a training epoch, if images do not fill it. Gradients of a "
        "few images are large, and may overflow: then use drop.",
        "partial",
        choices=("partial", "drop", "pad"),
    )


@dataclass(frozen=True, kw_only=True)
class Data(Decoding, _Batches, Normalization, Augmentation, _Images):  # keys of the last base come first
    """The images, and their augmentation."""

    decode: str = key(
        "Only with a GPU and DALI: where JPEGs are decoded. Everything else runs on the GPU.",
        "gpu",
        choices=("gpu", "cpu"),
    )


def _list_of(low, high):
    """Returns the limit of a list of numbers, each from ``low`` to ``high``, of limited length."""
    each = between(low, high)
    return Limit(f"{each.text}, at most {SEVERAL} of them", lambda value: len(value) <= SEVERAL and each.holds(value))


@dataclass(frozen=True, kw_only=True)
class Progressive:
    """Earlier stages of training, with images of other sizes, usually smaller ones (Howard 2018; Touvron et al. 2019).

    The last stage, which may be the only one, has data.size and training.batch_size.
    """

    until: tuple[int, ...] = key(
        "The epoch at which each of the earlier stages ends; an empty list means no earlier stages.",
        (),
        limit=Limit(
            f">= 1 and <= {MANY}, each larger than the one before, at most {SEVERAL} of them",
            lambda value: len(value) <= SEVERAL and all(map(operator.lt, (0, *value), (*value, MANY + 1))),
        ),
    )
    sizes: tuple[int, ...] = key(
        "Height and width of the images, in pixels, in each of these stages.",
        (),
        limit=_list_of(8, SIDE),
        aliases=("size", "resolutions"),
    )
    batch_sizes: tuple[int, ...] = key(
        "training.batch_size in each of these stages; an empty list leaves it unchanged.",
        (),
        limit=_list_of(1, MANY),
        aliases=("batch_size",),
    )
