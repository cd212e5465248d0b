"""Config sections about what is trained, on what, how long, and what is kept of it."""

from dataclasses import dataclass

from mixprec.config.declaration import Limit, key
from mixprec.config.limits import INTERVAL, NOT_NEGATIVE, at_least, matching
from mixprec.policy import LAYOUTS

_FOLDER = Limit("that is not empty", lambda value: value != "")


def _trigger(every):
    number, unit = every.split()
    return int(number), unit.removesuffix("s")


@dataclass(frozen=True, kw_only=True)
class Model:
    """The network."""

    arch: str = key("Name of the network, one of those the script knows.", aliases=("architecture", "network"))
    classes: int = key("Number of classes; it must be the number of class folders.", limit=at_least(2))
    layout: str = key(
        "How images lie in memory in the network: nhwc, which Tensor cores want, with functions of mixprec; nchw with "
        "Chainer's own.",
        "nhwc",
        choices=LAYOUTS,
        aliases=("memory_format",),
    )
    fuse: bool = key(
        "Compute a batch normalization together with the addition and the ReLU after it. Only with layout nhwc.", True
    )


@dataclass(frozen=True, kw_only=True)
class Data:
    """The images: folders with one folder per class, and what is done to the images."""

    train: str = key(
        "Folder with the training images, relative to the working directory.", limit=_FOLDER, aliases=("train_dir",)
    )
    val: str = key("Folder with the validation images, likewise.", limit=_FOLDER, aliases=("validation", "test"))
    size: int = key(
        "Height and width, in pixels, of what the network sees.", 224, limit=at_least(8), aliases=("crop_size",)
    )
    resize: int = key(
        "Validation: the shorter side, in pixels, before the centre is cropped to size.", 256, limit=at_least(8)
    )
    crop_area: tuple[float, float] = key(
        "Training: smallest and largest share of the image's area that a random crop takes.",
        (0.08, 1.0),
        limit=Limit("with 0 < first <= second <= 1", lambda value: 0 < value[0] <= value[1] <= 1),
    )
    flip: bool = key("Training: mirror left to right with probability 1/2.", True)
    mean: tuple[float, float, float] = key(
        "Subtracted from red, green and blue, which are 0 to 255.", (123.675, 116.28, 103.53)
    )
    std: tuple[float, float, float] = key(
        "Divides red, green and blue after that.",
        (58.395, 57.12, 57.375),
        limit=Limit("> 0", lambda value: min(value) > 0),
    )
    threads: int = key(
        "Number of CPU threads that decode images.", 4, limit=at_least(1), aliases=("workers", "num_workers")
    )


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate over time."""

    kind: str = key(
        "After the warm-up: constant, or half a cosine down to 0 at the end of training.",
        "cosine",
        choices=("constant", "cosine"),
        aliases=("name", "type"),
    )
    warmup_epochs: float = key(
        "Length of the linear rise to lr at the start.", 0.0, limit=NOT_NEGATIVE, aliases=("warmup",)
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long, on what."""

    batch_size: int = key("Number of images in one step.", limit=at_least(1))
    epochs: int = key("Number of passes over the training images.", limit=at_least(1))
    seed: int = key(
        "Start of the random numbers: weights, order of the images, crops.",
        0,
        # NumPy's np.random.seed takes 32 bits.
        limit=Limit(">= 0 and < 2^32", lambda value: 0 <= value < 2**32),
    )
    device: str = key(
        "auto is the first GPU, or the CPU if there is none; gpu is gpu:0.",
        "auto",
        limit=matching(r"auto|cpu|gpu|gpu:[0-9]{1,3}", "auto, cpu, gpu or gpu:N"),
    )


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Saved states of a run, from which --resume goes on."""

    every: str = key("Time between two; the end of training has one anyway.", "1 epoch", limit=INTERVAL)
    keep: int = key("Number of snapshots that stay on disk, the newest ones.", 3, limit=at_least(1))

    @property
    def trigger(self):
        """:attr:`every` in Chainer's form, ``(5, "epoch")``."""
        return _trigger(self.every)


@dataclass(frozen=True, kw_only=True)
class Log:
    """The log, the table in the terminal and the plots."""

    every: str = key("Time between two entries.", "1 epoch", limit=INTERVAL)
    gradient_histogram: str | None = key(
        "Time between two pictures of how the gradients lie in the range of float16, with and without loss scaling; "
        "each replaces the last gradients.png. null makes none.",
        None,
        limit=INTERVAL,
    )

    @property
    def trigger(self):
        """:attr:`every` in Chainer's form, ``(5, "epoch")``."""
        return _trigger(self.every)

    @property
    def gradient_histogram_trigger(self):
        """:attr:`gradient_histogram` in Chainer's form, or ``None``."""
        return None if self.gradient_histogram is None else _trigger(self.gradient_histogram)
