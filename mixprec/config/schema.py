"""The keys of a config file. ``docs/config.md`` holds the table that :func:`mixprec.config.reference` makes of them."""

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from mixprec.config.declaration import Limit, Rule, key
from mixprec.policy import COMPUTE_DTYPES

_POSITIVE = Limit("> 0", lambda value: value > 0)
_NOT_NEGATIVE = Limit(">= 0", lambda value: value >= 0)
_FOLDER = Limit("that is not empty", lambda value: value != "")

# Not AdaDelta, which has no learning rate, and not AdamW, whose weight decay is none of lr and weight_decay here: no
# schedule moves it.
_OPTIMIZERS = (
    *("SGD", "MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "Adam", "AMSGrad", "AdaBound", "AMSBound"),
    *("AdaGrad", "RMSprop", "RMSpropGraves", "SMORMS3", "MSVAG", "LARS", "LAMB"),
)
_MOMENTUM_OPTIMIZERS = ("MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "RMSpropGraves", "LARS")


def _at_least(low):
    return Limit(f">= {low}", lambda value: value >= low)


def _matching(pattern, text):
    return Limit(f"of the form {text}", lambda value: re.fullmatch(pattern, value) is not None)


def _power_of_two(text="from 2^-126 to 2^126", low=2.0**-126, high=2.0**126):
    # Up to these bounds the scale and its reciprocal are normal float32 numbers.
    return Limit(
        f"that is a power of two {text}",
        lambda value: low <= value <= high and math.frexp(value)[0] == 0.5,
    )


_INTERVAL = _matching(r"[1-9][0-9]{0,8} (epochs?|iterations?)", "'N epochs' or 'N iterations'")


def _trigger(every):
    number, unit = every.split()
    return int(number), unit.removesuffix("s")


@dataclass(frozen=True, kw_only=True)
class Model:
    """The network."""

    arch: str = key("Name of the network, one of those the script knows.", aliases=("architecture", "network"))
    classes: int = key("Number of classes; it must be the number of class folders.", limit=_at_least(2))


@dataclass(frozen=True, kw_only=True)
class Precision:
    """In which format the network computes."""

    compute: str = key(
        "Activations and weights in the forward and backward pass. Master weights, optimizer state, statistics and "
        "the loss are float32 in any case.",
        "float16",
        choices=COMPUTE_DTYPES,
        aliases=("dtype",),
    )


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """The factor that keeps small gradients from vanishing in float16."""

    mode: str = key(
        "dynamic adapts the scale to the overflows; static keeps it at init; none is a scale of 1.",
        "dynamic",
        choices=("dynamic", "static", "none"),
    )
    init: float = key(
        "First scale, or the scale itself in static mode.",
        65536.0,
        limit=_power_of_two(),
        aliases=("scale", "value", "init_scale"),
    )
    growth: float = key(
        "Factor after interval clean steps in a row.",
        2.0,
        limit=_power_of_two("from 2 to 2^126", low=2.0),
        aliases=("growth_factor",),
    )
    backoff: float = key(
        "Factor on an overflow.",
        0.5,
        limit=_power_of_two("from 2^-126 to 0.5", high=0.5),
        aliases=("backoff_factor",),
    )
    interval: int = key(
        "Number of steps without an overflow, in a row, before the scale grows.",
        2000,
        limit=_at_least(1),
        aliases=("growth_interval",),
    )
    floor: float | None = key(
        "The scale never falls below it; null switches that off.",
        2.0**-14,
        limit=_power_of_two(),
        aliases=("min",),
    )
    cap: float | None = key(
        "The scale never rises above it; null switches that off.", 2.0**24, limit=_power_of_two(), aliases=("max",)
    )
    hysteresis: int = key(
        "Number of overflows, since the scale last grew, from which on it backs off.", 1, limit=_at_least(1)
    )
    patience: int = key(
        "Number of overflows in a row after which training stops with an error.", 50, limit=_at_least(1)
    )


@dataclass(frozen=True, kw_only=True)
class Data:
    """The images: folders with one folder per class, and what is done to the images."""

    train: str = key(
        "Folder with the training images, relative to the working directory.", limit=_FOLDER, aliases=("train_dir",)
    )
    val: str = key("Folder with the validation images, likewise.", limit=_FOLDER, aliases=("validation", "test"))
    size: int = key(
        "Height and width, in pixels, of what the network sees.", 224, limit=_at_least(8), aliases=("crop_size",)
    )
    resize: int = key(
        "Validation: the shorter side, in pixels, before the centre is cropped to size.", 256, limit=_at_least(8)
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
        "Number of CPU threads that decode images.", 4, limit=_at_least(1), aliases=("workers", "num_workers")
    )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How the weights are updated."""

    name: str = key(
        "Optimizer of chainer.optimizers; LARS and LAMB are of mixprec.",
        "CorrectedMomentumSGD",
        choices=_OPTIMIZERS,
        aliases=("type", "kind"),
    )
    lr: float = key(
        "Learning rate at its peak, for the batch size of this file; alpha of Adam and its variants.",
        limit=_POSITIVE,
        aliases=("learning_rate", "alpha"),
    )
    momentum: float | None = key(
        f"Only for {', '.join(_MOMENTUM_OPTIMIZERS)}; null means 0.9 for those.",
        None,
        limit=Limit(">= 0 and < 1", lambda value: 0 <= value < 1),
    )
    trust_coefficient: float | None = key(
        "Only for LARS: length of a step in that of the parameter, before lr; null means 0.001.",
        None,
        limit=_POSITIVE,
        aliases=("eta",),
    )
    weight_decay: float = key(
        "Factor of the L2 penalty; in LARS and LAMB that of their own formula.",
        0.0,
        limit=_NOT_NEGATIVE,
        aliases=("decay", "l2"),
    )
    decay_norm_and_bias: bool = key(
        "Weight decay, and the trust ratio of LARS and LAMB, also on parameters of at most one dimension: biases, "
        "scales and shifts of normalizations.",
        False,
    )


@dataclass(frozen=True, kw_only=True)
class Update:
    """How the optimizer goes through the parameters."""

    batched: bool = key(
        "All parameters are updated together, on a GPU by two launches; off: Chainer's own loop over them.",
        True,
        aliases=("fused",),
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
    warmup_epochs: float = key("Length of the linear rise to lr at the start.", 0.0, limit=_NOT_NEGATIVE)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long, on what."""

    batch_size: int = key("Number of images in one step.", limit=_at_least(1))
    epochs: int = key("Number of passes over the training images.", limit=_at_least(1))
    seed: int = key(
        "Start of the random numbers: weights, order of the images, crops.",
        0,
        # NumPy's np.random.seed takes 32 bits.
        limit=Limit(">= 0 and < 2^32", lambda value: 0 <= value < 2**32),
    )
    device: str = key(
        "auto is the first GPU, or the CPU if there is none; gpu is gpu:0.",
        "auto",
        limit=_matching(r"auto|cpu|gpu|gpu:[0-9]{1,3}", "auto, cpu, gpu or gpu:N"),
    )


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Saved states of a run, from which --resume goes on."""

    every: str = key("Time between two; the end of training has one anyway.", "1 epoch", limit=_INTERVAL)
    keep: int = key("Number of snapshots that stay on disk, the newest ones.", 3, limit=_at_least(1))

    @property
    def trigger(self):
        """:attr:`every` in Chainer's form, ``(5, "epoch")``."""
        return _trigger(self.every)


@dataclass(frozen=True, kw_only=True)
class Log:
    """The log, the table in the terminal and the plots."""

    every: str = key("Time between two entries.", "1 epoch", limit=_INTERVAL)
    gradient_histogram: str | None = key(
        "Time between two pictures of how the gradients lie in the range of float16, with and without loss scaling; "
        "each replaces the last gradients.png. null makes none.",
        None,
        limit=_INTERVAL,
    )

    @property
    def trigger(self):
        """:attr:`every` in Chainer's form, ``(5, "epoch")``."""
        return _trigger(self.every)

    @property
    def gradient_histogram_trigger(self):
        """:attr:`gradient_histogram` in Chainer's form, or ``None``."""
        return None if self.gradient_histogram is None else _trigger(self.gradient_histogram)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole config. :func:`mixprec.config.load` makes one; two are equal if all their values are."""

    model: Model
    precision: Precision
    loss_scale: LossScale
    data: Data
    optimizer: Optimizer
    update: Update
    schedule: Schedule
    training: Training
    snapshot: Snapshot
    log: Log

    RULES: ClassVar = (
        Rule(
            ("loss_scale.floor", "loss_scale.init", "loss_scale.cap"),
            "loss_scale.floor <= loss_scale.init <= loss_scale.cap in dynamic mode",
            lambda config: _scale_in_range(config.loss_scale),
        ),
        Rule(
            ("data.size", "data.resize"),
            "data.size <= data.resize",
            lambda config: config.data.size <= config.data.resize,
        ),
        Rule(
            ("optimizer.name", "optimizer.momentum"),
            f"optimizer.momentum only with {', '.join(_MOMENTUM_OPTIMIZERS)}; null with the others",
            lambda config: config.optimizer.momentum is None or config.optimizer.name in _MOMENTUM_OPTIMIZERS,
        ),
        Rule(
            ("optimizer.name", "optimizer.trust_coefficient"),
            "optimizer.trust_coefficient only with LARS; null with the others",
            lambda config: config.optimizer.trust_coefficient is None or config.optimizer.name == "LARS",
        ),
        Rule(
            ("schedule.warmup_epochs", "training.epochs"),
            "schedule.warmup_epochs < training.epochs",
            lambda config: config.schedule.warmup_epochs < config.training.epochs,
        ),
    )


def _scale_in_range(settings):
    if settings.mode != "dynamic":
        return True
    above = settings.floor is None or settings.floor <= settings.init
    return above and (settings.cap is None or settings.init <= settings.cap)
