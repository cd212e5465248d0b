"""The contents of a loader's batches: shapes, augmentation, order."""

import dataclasses

from mixprec.bounds import HALF, INT32, SEVERAL, SIDE
from mixprec.data.data_error import DataError
from mixprec.data.loaders.augmentation import AUGMENTATIONS, LAST_BIN, OPERATIONS
from mixprec.data.loaders.epochs import LAST_BATCH, Epochs

DTYPES = ("float16", "float32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """Everything that fixes the content of the batches; see :class:`~mixprec.data.loaders.iterator.ImageIterator`."""

    batch_size: int
    train: bool
    size: int
    resize: int | None
    crop_area: tuple
    aspect: tuple
    flip: bool
    mean: tuple
    std: tuple
    seed: int
    last_batch: str
    shard: int
    num_shards: int
    epochs_before: int = 0
    batches_before: int = 0
    augment: str = "none"
    augment_operations: int = 2
    augment_magnitude: int = 9
    augment_deviation: float = 0.0
    augment_probability: float = 1.0
    erase: float = 0.0
    repeats: int = 1

    @property
    def dali_seed(self):
        """The seed in a stage of training, for DALI, which begins with its epoch 0 in each stage."""
        return (self.seed + self.epochs_before * 0x85EBCA6B) % 2**32

    def epochs(self, images):
        """Returns the :class:`~mixprec.data.loaders.epochs.Epochs` of a data set of so many images."""
        return Epochs(
            images=images,
            batch_size=self.batch_size,
            last_batch=self.last_batch,
            shard=self.shard,
            num_shards=self.num_shards,
            epochs_before=self.epochs_before,
            batches_before=self.batches_before,
        )


def defaults():
    """Returns a dict of the settings that have a default, which is what snapshots without them were made with."""
    fields = dataclasses.fields(BatchSpec)
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def validate(spec, images, *, dtype, threads, prefetch, shuffle_window):
    """Raises :class:`DataError` for the first argument that is impossible.

    Args:
        spec (BatchSpec): What is wanted.
        images (int): Number of images in the data set.
        dtype (str): Of the batches.
        threads (int): For decoding.
        prefetch (int): Batches made ahead.
        shuffle_window (int): Images among which the next one of a shard file is drawn.
    """
    low, high = spec.crop_area
    narrow, wide = spec.aspect
    shards = spec.num_shards
    smallest = images // max(1, shards)
    whose = "the number of images" if shards == 1 else f"the number of images in the smallest of {shards} shards"
    checks = (
        (shards >= 1, f"num_shards {shards}: must be at least 1"),
        (0 <= spec.shard < shards, f"shard {spec.shard}: must be 0 to num_shards - 1, {shards - 1}"),
        (1 <= spec.batch_size <= smallest, f"batch_size {spec.batch_size}: must be 1 to {smallest}, {whose}"),
        (spec.last_batch in LAST_BATCH, f"last_batch {spec.last_batch!r}: must be one of {', '.join(LAST_BATCH)}"),
        (1 <= spec.size <= SIDE, f"size {spec.size}: must be 1 to {SIDE}"),
        (
            spec.resize is None or not spec.train,
            f"resize {spec.resize}: only for validation; training resizes its random crops to size",
        ),
        (
            spec.resize is None or spec.resize >= spec.size,
            f"resize {spec.resize}: must be at least size, {spec.size}, which is cropped from it",
        ),
        (spec.resize is None or spec.resize <= SIDE, f"resize {spec.resize}: must be at most {SIDE}"),
        (spec.train or not spec.flip, "flip: only for training"),
        *_augmentation(spec),
        (1e-4 <= low <= high <= 1, f"crop_area {spec.crop_area}: must be 0.0001 <= lowest <= highest <= 1"),
        (0 < narrow <= wide, f"aspect {spec.aspect}: must be 0 < lowest <= highest"),
        (
            len(spec.mean) == 3 and all(-HALF <= mean <= HALF for mean in spec.mean),
            f"mean {spec.mean}: must be three numbers from -{HALF} to {HALF}, for R, G, B",
        ),
        (
            len(spec.std) == 3 and all(0.001 <= std <= HALF for std in spec.std),
            f"std {spec.std}: must be three numbers from 0.001 to {HALF}, for R, G, B",
        ),
        (dtype in DTYPES, f"dtype {dtype!r}: must be 'float16' or 'float32'"),
        (0 <= spec.seed < 2**32, f"seed {spec.seed}: must be 0 to 2^32 - 1"),
        (1 <= threads <= SEVERAL, f"threads {threads}: must be 1 to {SEVERAL}"),
        (1 <= prefetch <= SEVERAL, f"prefetch {prefetch}: must be 1 to {SEVERAL}"),
        (1 <= shuffle_window <= INT32, f"shuffle_window {shuffle_window}: must be 1 to {INT32}"),
    )
    for possible, message in checks:
        if not possible:
            raise DataError(message)


def _augmentation(spec):
    default = defaults()
    training = ("augment", "erase", "repeats")
    yield from (
        (spec.train or getattr(spec, name) == default[name], f"{name} {getattr(spec, name)}: only for training")
        for name in training
    )
    yield spec.augment in AUGMENTATIONS, f"augment {spec.augment!r}: must be one of {', '.join(AUGMENTATIONS)}"
    for name, low, high in (
        ("augment_operations", 1, len(OPERATIONS)),
        ("augment_magnitude", 0, LAST_BIN),
        ("augment_deviation", 0, LAST_BIN),
        ("augment_probability", 0, 1),
    ):
        value = getattr(spec, name)
        yield spec.augment == "rand" or value == default[name], f"{name} {value}: only with augment 'rand'"
        yield low <= value <= high, f"{name} {value}: must be {low} to {high}"
    yield 0 <= spec.erase <= 1, f"erase {spec.erase}: must be 0 to 1"
    yield 1 <= spec.repeats <= SEVERAL, f"repeats {spec.repeats}: must be 1 to {SEVERAL}"
