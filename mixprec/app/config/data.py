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
        "folders: a folder with one folder per class; list: a text file with 'path label' in each line; tfrecord and "
        "webdataset: a folder of shards; synthetic: random numbers on the device, for benchmarks; auto detects it.",
        "auto",
        choices=FORMATS,
        aliases=("kind", "type", "source"),
    )
    train: str | None = key(
        "Path of the training images, relative to the working directory; null with format synthetic.",
        None,
        limit=PATH,
        aliases=("train_dir",),
    )
    val: str | None = key(
        "Path of the validation images, like train.", None, limit=PATH, aliases=("validation", "test")
    )
    root: str | None = key(
        "Only for format list: the folder that the paths in the lists are relative to; null means the folder of the "
        "list.",
        None,
        limit=PATH,
    )
    synthetic_images: int | None = key(
        "Only for format synthetic: number of training images in an epoch; there is no validation.",
        None,
        limit=between(1, INT32),
    )
    on_error: str = key(
        "For a file that is not an intact image: stop names it before training starts; skip leaves it out, and lists "
        "it in skipped.txt.",
        "stop",
        choices=("stop", "skip"),
    )
    loader: str = key(
        "The library that decodes: dali; pillow, slower, in separate processes; auto means DALI if it is installed.",
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
        "The same in validation; null means size. A larger one compensates for random crops that enlarge objects "
        "(Touvron et al. 2019).",
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
        "Whether there is a fourth channel of zeros in memory, after the three that the network sees: Tensor cores "
        "then read aligned rows of pixels.",
        False,
    )
    last_batch: str = key(
        "Training, if the images of an epoch do not fill the last batch: partial makes a smaller batch; drop leaves "
        "these images out of this epoch; pad repeats one, with labels of -1, which the loss ignores. Gradients of a "
        "few images are large, and may overflow: then use drop.",
        "partial",
        choices=("partial", "drop", "pad"),
    )


@dataclass(frozen=True, kw_only=True)
class Data(Decoding, _Batches, Normalization, Augmentation, _Images):  # keys of the last base come first
    """The images, and their augmentation."""

    decode: str = key(
        "Only with a GPU and DALI: whether JPEGs are decoded on the GPU or on the CPU. Everything else runs on the "
        "GPU.",
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
