"""The whole config: its sections, and the rules for several keys together.

:mod:`mixprec.app.config.loader` reads the declarations to check a file, and makes a :class:`Config` of it.
:mod:`mixprec.app.config.writer` makes YAML and the reference of them.
"""

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import ClassVar

from mixprec.app.config.arithmetic import Capture, Cudnn, Kfac, LossScale, Optimizer, Precision, Update
from mixprec.app.config.data import Data, Progressive
from mixprec.app.config.run import Export, Log, Memory, Model, Schedule, Snapshot, Training
from mixprec.base.bounds import HALF
from mixprec.base.declaration import Rule
from mixprec.base.optimizer_names import WITH_AVERAGE, WITH_KEY
from mixprec.data.loaders.random_policies import RAND_DEFAULTS


def _only(key, other, *values):
    """Returns the rule of a key that is null or false unless another key has one of some values."""
    own, others = attrgetter(key), attrgetter(other)
    return Rule(
        (other, key),
        f"{key} only with {other} {' or '.join(values)}",
        lambda config: own(config) is None or own(config) is False or others(config) in values,
    )


def _only_with(key, others=""):
    """Returns the rule of a key that only some optimizers have; ``others`` states its value for the others."""
    return replace(
        _only(f"optimizer.{key}", "optimizer.name", *WITH_KEY[key]),
        text=f"optimizer.{key} only with {', '.join(WITH_KEY[key])}{others}",
        # Other programs call both SGD.
        near=lambda config: "MomentumSGD" if key == "momentum" and config.optimizer.name == "SGD" else None,
    )


def _averaging(key, value, holds, why=""):
    """Returns the rule of a key with optimizers whose models are evaluated at an average."""
    own = attrgetter(key)
    return Rule(
        ("optimizer.name", key),
        f"{key} {value} with {', '.join(WITH_AVERAGE)}{why}",
        lambda config: config.optimizer.name not in WITH_AVERAGE or holds(own(config)),
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole config. :func:`mixprec.app.config.load` makes one; two are equal if all their values are.

    Example:
        >>> from mixprec.app import config
        >>> from mixprec.recipes import config_path
        >>> digits = config.load(config_path("digits.yaml"))
        >>> digits.optimizer.name, digits.optimizer.lr, digits.data.size
        ('CorrectedMomentumSGD', 0.05, 32)
    """

    model: Model
    precision: Precision
    loss_scale: LossScale
    data: Data
    progressive: Progressive
    optimizer: Optimizer
    kfac: Kfac
    update: Update
    cudnn: Cudnn
    schedule: Schedule
    training: Training
    memory: Memory
    capture: Capture
    snapshot: Snapshot
    log: Log
    export: Export

    # The sections of docs/config-tuning.md; docs/config.md has the others.
    TUNING: ClassVar = ("loss_scale", "progressive", "kfac", "update", "cudnn", "memory", "capture", "export")
    RULES: ClassVar = (
        Rule(
            ("loss_scale.min_scale", "loss_scale.init_scale", "loss_scale.max_scale"),
            "loss_scale.min_scale <= loss_scale.init_scale <= loss_scale.max_scale in dynamic mode",
            lambda config: _scale_in_range(config.loss_scale),
        ),
        _only("model.fuse", "model.memory_format", "nhwc"),
        _only("model.conv_statistics", "model.memory_format", "nhwc"),
        Rule(
            ("precision.compute", "model.memory_format"),
            "precision.compute bfloat16 only with model.memory_format nhwc",
            lambda config: config.precision.compute != "bfloat16" or config.model.memory_format == "nhwc",
        ),
        Rule(
            ("data.size", "data.val_size", "data.resize"),
            "data.val_size, or data.size if that is null, <= data.resize",
            lambda config: (config.data.val_size or config.data.size) <= config.data.resize,
        ),
        Rule(
            ("data.mean", "data.std"),
            f"(0 - mean) / std and (255 - mean) / std from -{HALF} to {HALF}, the range of float16",
            lambda config: all(
                abs(pixel - mean) <= HALF * std
                for mean, std in zip(config.data.mean, config.data.std, strict=True)
                for pixel in (0, 255)
            ),
        ),
        Rule(
            ("data.format", "data.train", "data.val", "data.synthetic_images"),
            "data.train and data.val, without data.synthetic_images; with data.format synthetic only the latter",
            lambda config: _is_complete(config.data),
        ),
        _only("data.root", "data.format", "list"),
        Rule(
            ("data.augment", *(f"data.{name}" for name in RAND_DEFAULTS)),
            f"{', '.join(f'data.{name} {value}' for name, value in RAND_DEFAULTS.items())} unless data.augment is rand",
            lambda config: (
                config.data.augment == "rand"
                or all(getattr(config.data, name) == value for name, value in RAND_DEFAULTS.items())
            ),
        ),
        Rule(
            ("data.augment", "data.extra_operations"),
            "data.extra_operations only with data.augment rand",
            lambda config: config.data.augment == "rand" or not config.data.extra_operations,
        ),
        _only("data.pad_channels", "model.memory_format", "nhwc"),
        Rule(
            ("schedule.kind", "schedule.milestones"),
            "schedule.milestones exactly with schedule.kind step",
            lambda config: (config.schedule.kind == "step") == bool(config.schedule.milestones),
        ),
        Rule(
            ("schedule.kind", "schedule.end_lr"),
            "schedule.end_lr 0 unless kind is cosine or poly",
            lambda config: config.schedule.end_lr == 0 or config.schedule.kind in ("cosine", "poly"),
        ),
        Rule(
            ("schedule.end_lr", "optimizer.lr"),
            "schedule.end_lr <= optimizer.lr",
            lambda config: config.schedule.end_lr <= config.optimizer.lr,
        ),
        Rule(
            ("memory.budget", "memory.to"),
            "memory.to only with memory.budget",
            lambda config: config.memory.to is None or config.memory.budget is not None,
        ),
        _only("training.bce_threshold", "training.loss", "bce"),
        Rule(
            ("training.loss", "training.label_smoothing"),
            "training.label_smoothing 0 with a training.loss of your own, which can smooth labels itself",
            lambda config: not (config.training.has_own_loss and config.training.label_smoothing),
        ),
        _only("training.class_weights", "training.loss", "cross_entropy"),
        Rule(
            ("training.class_weights", "model.classes"),
            "training.class_weights, if it is a list, with a number for each of model.classes",
            lambda config: _has_all_weights(config.training.class_weights, config.model.classes),
        ),
        Rule(
            ("training.class_weights", "data.format"),
            "training.class_weights a list or null with data.format synthetic, whose classes are not counted",
            lambda config: config.training.class_weights != "balanced" or config.data.format != "synthetic",
        ),
        Rule(
            ("training.bce_threshold", "training.label_smoothing", "model.classes"),
            "label_smoothing / classes <= bce_threshold < 1 - label_smoothing + label_smoothing / classes: between the "
            "targets of other classes and of the label",
            lambda config: _separates(config.training, config.model.classes),
        ),
        Rule(
            ("data.last_batch", "training.mixup", "training.cutmix"),
            "data.last_batch partial or drop with training.mixup or training.cutmix: padding would be mixed in",
            lambda config: config.data.last_batch != "pad" or not (config.training.mixup or config.training.cutmix),
        ),
        Rule(
            ("progressive.until", "progressive.sizes", "progressive.batch_sizes"),
            "progressive.sizes as long as progressive.until, and progressive.batch_sizes, too, if it is not empty",
            lambda config: _fit(config.progressive),
        ),
        Rule(
            ("progressive.until", "training.epochs"),
            "each of progressive.until < training.epochs",
            lambda config: all(epoch < config.training.epochs for epoch in config.progressive.until),
        ),
        Rule(
            ("data.format", "snapshot.best"),
            "snapshot.best false with data.format synthetic, which has no validation",
            lambda config: config.data.format != "synthetic" or not config.snapshot.best,
        ),
        _only_with("momentum", "; null with the others"),
        _averaging("optimizer.momentum", "above 0", lambda momentum: momentum != 0),
        _only_with("nesterov"),
        _averaging("schedule.kind", "constant", lambda kind: kind == "constant", "; a warm-up is allowed"),
        _averaging("training.ema_decay", "null", lambda decay: decay is None, ", which has its own average"),
        _only_with("trust_coefficient", "; null with the others"),
        Rule(
            ("optimizer.preconditioner", "model.memory_format"),
            "optimizer.preconditioner kfac only with model.memory_format nhwc: it observes functions of mixprec",
            lambda config: config.optimizer.preconditioner == "none" or config.model.memory_format == "nhwc",
        ),
        Rule(
            ("kfac.factor_every", "kfac.inverse_every"),
            "kfac.inverse_every a multiple of kfac.factor_every",
            lambda config: config.kfac.inverse_every % config.kfac.factor_every == 0,
        ),
        Rule(
            ("schedule.warmup_epochs", "schedule.warmup_start_lr"),
            "schedule.warmup_start_lr only with schedule.warmup_epochs above 0",
            lambda config: config.schedule.warmup_start_lr is None or config.schedule.warmup_epochs > 0,
        ),
        Rule(
            ("schedule.warmup_start_lr", "optimizer.lr"),
            "schedule.warmup_start_lr <= optimizer.lr",
            lambda config: (config.schedule.warmup_start_lr or 0) <= config.optimizer.lr,
        ),
        Rule(
            ("schedule.by", "schedule.warmup_epochs", "schedule.warmup_start_lr"),
            "schedule.by epoch with schedule.warmup_start_lr, if there is a warm-up",
            lambda config: _begins(config.schedule),
        ),
        Rule(
            ("schedule.warmup_epochs", "training.epochs"),
            "schedule.warmup_epochs < training.epochs",
            lambda config: config.schedule.warmup_epochs < config.training.epochs,
        ),
        Rule(
            ("update.fused", "capture.mode"),
            "capture.mode off if update.fused is false: only the fused update can be captured",
            lambda config: config.update.fused or config.capture.mode == "off",
        ),
        Rule(
            ("model.memory_format", "capture.mode"),
            "capture.mode required only with model.memory_format nhwc: Chainer's own functions call cuBLAS, which "
            "cannot be captured through CuPy",
            lambda config: config.model.memory_format == "nhwc" or config.capture.mode != "required",
        ),
        Rule(
            ("training.device", "capture.mode"),
            "capture.mode required only on a GPU, not with training.device cpu",
            lambda config: config.training.device != "cpu" or config.capture.mode != "required",
        ),
    )


def _separates(training, classes):
    others = training.label_smoothing / classes
    return training.bce_threshold is None or others <= training.bce_threshold < 1 - training.label_smoothing + others


def _has_all_weights(weights, classes):
    return not isinstance(weights, tuple) or len(weights) == classes


def _fit(progressive):
    stages = len(progressive.until)
    return len(progressive.sizes) == stages and len(progressive.batch_sizes) in (0, stages)


def _begins(schedule):
    return schedule.by == "step" or schedule.warmup_epochs == 0 or schedule.warmup_start_lr is not None


def _scale_in_range(settings):
    if settings.mode != "dynamic":
        return True
    above = settings.min_scale is None or settings.min_scale <= settings.init_scale
    return above and (settings.max_scale is None or settings.init_scale <= settings.max_scale)


def _is_complete(data):
    if data.format == "synthetic":
        return data.train is None and data.val is None and data.synthetic_images is not None
    return data.train is not None and data.val is not None and data.synthetic_images is None
