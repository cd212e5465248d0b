"""The dry run: what a run would need, and whether that is there."""

import os
import shutil

from chainer.serializers import npz

from mixprec.training import estimate as estimates
from mixprec.training import timing


class DoesNotFit(ValueError):
    """The run needs more than there is; the message is one line and names the keys."""


def estimate(config, trainer, report, images, out):
    """Estimates memory, disk space and time, with some real steps; the trainer is of no use afterwards.

    Args:
        config: :class:`mixprec.config.Config`.
        trainer: from :func:`mixprec.training.trainer.build_trainer`.
        report: of the conversion.
        images: number of training images.
        out: results folder; it need not exist.

    Returns:
        str: tables for the console.

    Raises:
        DoesNotFit: there is not enough memory, or disk space.
    """
    memory = estimates.memory(config, trainer, report, images)
    if memory.needed > memory.available:
        raise DoesNotFit(
            f"training.batch_size {config.training.batch_size}: needs about {estimates.in_words(memory.needed)}, and "
            f"{memory.where} has {estimates.in_words(memory.available)} free; lower it, and raise training.accumulate "
            f"by as much to keep the step"
        )
    try:
        time = timing.measure(trainer, images, config.training.epochs)
    finally:
        trainer.updater.finalize()
    return f"{memory}\n\n{_disk(config, trainer, out)}\n\n{time}"


def _disk(config, trainer, out):
    """Compares what snapshots will take with what is free where they go."""
    size = sum(array.nbytes for array in npz.serialize(trainer.updater).values())
    if config.training.ema_decay is not None:
        size += estimates.average(trainer)
    best = config.snapshot.best and config.data.format != "synthetic"
    count = config.snapshot.keep + best + 1  # one is written before the oldest is removed
    existing = os.path.abspath(out)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    free = shutil.disk_usage(existing).free
    if count * size > free:
        raise DoesNotFit(
            f"{out}: {count} snapshots need {estimates.in_words(count * size)}, and {estimates.in_words(free)} are "
            f"free; lower snapshot.keep, or give another --out"
        )
    return (
        f"disk: {count} snapshots of {estimates.in_words(size)}, {estimates.in_words(count * size)} of "
        f"{estimates.in_words(free)} that are free"
    )
