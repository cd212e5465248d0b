"""Settings of loaders: the contents of their batches, and the delivery."""

import dataclasses
import json

from mixprec.base.bounds import HALF, INT32, SEVERAL, SIDE
from mixprec.base.declaration import between, key
from mixprec.data.data_error import DataError
from mixprec.data.loaders.augmentation import Augmentation, problems
from mixprec.data.loaders.epochs import LAST_BATCH, Epochs, Shard
from mixprec.data.loaders.typed import Typed, impossible

DTYPES = ("float16", "float32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crop(Typed):
    """The crop of an image that a batch contains.

    Attributes:
        size (int): Height and width of the output, in pixels.
        resize (int or None): Validation: length of the shorter side before the centre crop, >= size; None keeps the
            image as it is, it must then be at least size x size.
        crop_area (pair of float): Training: area of the random crop as a fraction of the image's area.
        aspect (pair of float): Training: aspect ratio (width / height) of the random crop.
        flip (bool): Training: mirror half of the images, left to right.

    Example:
        >>> from mixprec.data import Crop
        >>> Crop(size=224, resize=256).size  # validation; Crop(size=224, flip=True) for training
        224
    """

    size: int
    resize: int | None = None
    crop_area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normalization(Typed):
    """``(pixel - mean) / std`` of red, green and blue, which are 0 to 255; ImageNet's numbers by default.

    Example:
        >>> from mixprec.data import Normalization
        >>> Normalization(mean=(127.5,) * 3, std=(127.5,) * 3).std  # to numbers from -1 to 1
        (127.5, 127.5, 127.5)
    """

    mean: tuple[float, float, float] = key(
        "Subtracted from red, green and blue, which are 0 to 255.",
        (123.675, 116.28, 103.53),
        limit=between(-HALF, HALF),
    )
    std: tuple[float, float, float] = key(
        "Divides red, green and blue after that.", (58.395, 57.12, 57.375), limit=between(0.001, HALF)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSpec(Typed):
    """Everything that determines the content of the batches.

    Attributes:
        batch_size (int): Images per batch, 1 to the number of images in the smallest shard.
        train (bool): Training or validation.
        crop (Crop): Size, and the part of an image.
        normalization (Normalization): Mean and standard deviation.
        seed (int): 0 to 2^32 - 1; fixes order and augmentation.
        last_batch (str): The end of an epoch, see :class:`~mixprec.data.loaders.epochs.Epochs`: ``'partial'`` has a
            smaller last batch, ``'drop'`` leaves images out, ``'pad'`` repeats images, with labels of -1. A shard
            without an image in the last batch gets one with the label -1.
        shard (Shard): The part of each batch.
        augmentation (Augmentation): Training: augmentation after crop and flip, and copies.

    Example:
        >>> from mixprec.data import BatchSpec, Crop
        >>> BatchSpec(batch_size=256, train=True, crop=Crop(size=224, flip=True), seed=0).last_batch
        'partial'
    """

    batch_size: int
    train: bool
    crop: Crop
    normalization: Normalization = Normalization()
    seed: int
    last_batch: str = "partial"
    shard: Shard = dataclasses.field(default_factory=Shard)
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)

    @property
    def dali_seed(self):
        """The seed in a stage of training, for DALI, whose epochs begin with 0 in each stage."""
        return (self.seed + self.shard.epochs_before * 0x85EBCA6B) % 2**32

    def epochs(self, images):
        """Returns the :class:`~mixprec.data.loaders.epochs.Epochs` of a data set with this number of images."""
        return Epochs(
            images=images, batch_size=self.batch_size, last_batch=self.last_batch, **dataclasses.asdict(self.shard)
        )

    def settings(self):
        """Returns all settings by name, in the form that JSON restores."""
        return _flat(self)


def defaults():
    """Returns a dict of the settings that snapshots of earlier versions may lack, with the values of those versions."""
    return {**_flat(Shard()), **_flat(Augmentation())}


def _flat(settings):
    """All settings by name, without empty lists, so that snapshots of versions without these settings agree."""
    found = {}
    for name, value in json.loads(json.dumps(dataclasses.asdict(settings))).items():
        found |= value if isinstance(value, dict) else {name: value}
    return {name: value for name, value in found.items() if value != []}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding(Typed):
    """Settings for making batches. Only ``shuffle_window`` changes their contents."""

    shuffle_window: int = key(
        "Number of images of shards among which the next one is drawn. Folders and lists are shuffled as a whole.",
        16384,
        limit=between(1, INT32),
    )
    threads: int = key(
        "Number of CPU threads that decode images; with Pillow, of processes, at most one for each image of a batch.",
        4,
        limit=between(1, SEVERAL),
        aliases=("workers", "num_workers"),
    )
    prefetch: int = key(
        "Number of batches that are made ahead.", 2, limit=between(1, SEVERAL), aliases=("prefetch_depth",)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivery(Decoding):
    """Settings for making and delivering batches.

    Attributes:
        dtype (str): ``'float16'`` or ``'float32'``, the dtype of the images.
        pad_channels (bool): Whether there is a fourth channel of zeros in memory.

    Example:
        >>> from mixprec.data import Delivery
        >>> Delivery(dtype="float16", threads=8, pad_channels=True).threads
        8
    """

    dtype: str
    pad_channels: bool = False


def validate(spec, images, delivery, whose=None):
    """Raises :class:`DataError` for the first argument that is impossible.

    Args:
        spec (BatchSpec): Contents of the batches.
        images (int): Number of images in the data set.
        delivery (Delivery): Delivery of the batches.
        whose (str or None): Words for the limit of the batch size; None for the words of this function.
    """
    crop, shard, shards = spec.crop, spec.shard.shard, spec.shard.num_shards
    low, high = crop.crop_area
    narrow, wide = crop.aspect
    smallest = images // max(1, shards)
    if whose is None:
        whose = "the number of images" if shards == 1 else f"the number of images in the smallest of {shards} shards"
    checks = (
        (shards >= 1, f"num_shards {shards}: must be at least 1"),
        (0 <= shard < shards, f"shard {shard}: must be 0 to num_shards - 1, {shards - 1}"),
        (1 <= spec.batch_size <= smallest, f"batch_size {spec.batch_size}: must be 1 to {smallest}, {whose}"),
        (spec.last_batch in LAST_BATCH, f"last_batch {spec.last_batch!r}: must be one of {', '.join(LAST_BATCH)}"),
        (1 <= crop.size <= SIDE, f"size {crop.size}: must be 1 to {SIDE}"),
        (
            crop.resize is None or not spec.train,
            f"resize {crop.resize}: only for validation; training resizes its random crops to size",
        ),
        (
            crop.resize is None or crop.resize >= crop.size,
            f"resize {crop.resize}: must be at least size, {crop.size}, which is cropped from it",
        ),
        (crop.resize is None or crop.resize <= SIDE, f"resize {crop.resize}: must be at most {SIDE}"),
        (spec.train or not crop.flip, "flip: only for training"),
        *((False, message) for message in problems(spec.augmentation, spec.train)),
        (1e-4 <= low <= high <= 1, f"crop_area {crop.crop_area}: must be 0.0001 <= lowest <= highest <= 1"),
        (0 < narrow <= wide, f"aspect {crop.aspect}: must be 0 < lowest <= highest"),
        *((False, f"{problem}, for R, G, B") for problem in impossible(spec.normalization, "three numbers from ")),
        (delivery.dtype in DTYPES, f"dtype {delivery.dtype!r}: must be 'float16' or 'float32'"),
        (0 <= spec.seed < 2**32, f"seed {spec.seed}: must be 0 to 2^32 - 1"),
        *((False, message) for message in impossible(delivery)),
    )
    for possible, message in checks:
        if not possible:
            raise DataError(message)
