"""The learning rate and the damping of K-FAC that a config describes, for :mod:`mixprec.training.schedule`."""

import dataclasses

from mixprec.app.parts.stages import stages_of, steps_of
from mixprec.training.schedule import Rates


def damping_at(config, epoch):
    """Returns the damping of K-FAC: ``start * (end / start) ** progress``, where progress is 1 at the end of training.

    Args:
        config: :class:`mixprec.app.config.Config`, whose ``kfac.end_damping`` is the damping at the end of training.
        epoch: epoch of the iteration, a float.
    """
    start, end = config.kfac.damping, config.kfac.end_damping
    return start * ((start if end is None else end) / start) ** min(1.0, epoch / config.training.epochs)


def rates_of(config, images, ranks=1):
    """Returns the :class:`Rates` that a config describes.

    Args:
        config: :class:`mixprec.app.config.Config`.
        images: number of training images.
        ranks: number of processes that train together.
    """
    schedule, steps = config.schedule, steps_of(config, images, ranks)
    scaled = {
        name: scaled_rate(config, rate, ranks)
        for name in ("end_lr", "warmup_start_lr")
        if (rate := getattr(schedule, name)) is not None
    }
    scales = config.optimizer.base_batch_size is not None
    of_stages = tuple(
        (
            float(stage.end),
            stage.batch_size / config.training.batch_size if scales else 1.0,
            1 / steps.in_epoch(stage.first),
        )
        for stage in stages_of(config)
    )
    return Rates(
        settings=dataclasses.replace(schedule, **scaled),
        peak=scaled_rate(config, config.optimizer.lr, ranks),
        epochs=config.training.epochs,
        stages=of_stages,
    )


def images_per_step(config, ranks=1):
    """Returns the number of images in a step of the optimizer: batch size * accumulated batches * processes.

    Stages of training before the last one may have other numbers.
    """
    return config.training.batch_size * config.training.accumulation_steps * ranks


def scaled_rate(config, rate, ranks=1):
    """Returns a learning rate of a config, scaled to the number of images in a step.

    By the linear scaling rule (Goyal et al. 2017, arXiv:1706.02677, section 2.1), ``rate * images_per_step /
    base_batch_size``; unscaled if ``optimizer.base_batch_size`` is null.
    """
    base = config.optimizer.base_batch_size
    return rate if base is None else rate * images_per_step(config, ranks) / base


def described_rate(config, ranks=1):
    """Returns a text with the peak learning rate, and the rate before scaling."""
    optimizer, images = config.optimizer, images_per_step(config, ranks)
    text = f"{scaled_rate(config, optimizer.lr, ranks):g} at its peak, with {images} images in a step"
    if config.progressive.batch_sizes:
        text += " of the last stage"
    if optimizer.base_batch_size is not None and optimizer.base_batch_size != images:
        text += f" ({optimizer.lr:g} * {images} / {optimizer.base_batch_size})"
    return text
