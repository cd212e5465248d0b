"""The memory, disk space and time that a run needs.

The training command checks memory before it tries the network, and the disk before a run begins. The dry run checks and
prints all of them.
"""

import dataclasses
import os
import shutil

import numpy as np

from mixprec.config.data import Progressive
from mixprec.messages import OneLineError
from mixprec.training import estimate as estimates
from mixprec.training import kept_activations, output, snapshots, timing
from mixprec.training.model import EXAMPLE, build_model
from mixprec.training.stages import Steps, at_largest, largest_stage

_ADVICE = {
    "training.batch_size": "lower it, and raise training.accumulation_steps by as much to keep the step",
    "model.arch": "choose a smaller network",
    "optimizer.preconditioner": "set it to none, or lower kfac.largest",
    "optimizer.name": "choose one with less state, such as SGD",
    "training.ema_decay": "set it to null",
    "capture.mode": "set it to off",
}
_PIXEL = 256  # bytes that a large network keeps for a pixel of an image, more than ResNets
_SMALL = 224  # pixels: a size for which a network can be looked at anywhere


class DoesNotFit(OneLineError):
    """The run needs more than there is; the message is one line and names the key."""


def check_size(config, network, device):
    """Makes sure that there is memory to look at a network with images of all sizes, before that is done.

    It is looked at with smaller ones if they are so large that they may not fit, which is rare.

    Args:
        config: :class:`mixprec.config.Config`.
        network: as for :func:`mixprec.training.model.build_model`.
        device: device specifier of Chainer.

    Raises:
        DoesNotFit: there is not.
    """
    size, (free, where) = max(config.data.size, *config.progressive.sizes, 0), estimates.available_on_host()
    if EXAMPLE * _PIXEL * size**2 <= free:
        return
    try:
        data = dataclasses.replace(config.data, size=_SMALL)
        small = dataclasses.replace(config, data=data, progressive=Progressive())
        _, report = build_model(small, network, device)
        needed = sum(report.activation_bytes) + report.largest_activation_bytes
    except Exception:  # a network for images of one size, which is then looked at with that
        needed = EXAMPLE * _SMALL**2 * 3 * 4
    needed = needed * size**2 // _SMALL**2
    if needed > free:
        key = "data.size" if size == config.data.size else "progressive.sizes with"
        raise DoesNotFit(
            f"{key} {size}: {EXAMPLE} images, with which the network is looked at, need about "
            f"{estimates.in_words(needed)}, and {where} has {estimates.in_words(free)} free; lower it"
        )


def check_disk(config, trainer, images, out, ranks=1):
    """Compares what snapshots will take with what is free where they go; those of a run that goes on are there.

    Args:
        config: :class:`mixprec.config.Config`.
        trainer: from :func:`mixprec.training.trainer.build_trainer`.
        images: number of training images.
        out: results folder; it need not exist.
        ranks: number of processes that train together.

    Returns:
        str: a line for the console.

    Raises:
        DoesNotFit: there is not enough space.
    """
    size = _snapshot(config, trainer)
    best = config.snapshot.best and config.data.format != "synthetic"
    kept = min(config.snapshot.keep, _snapshots(config, images, ranks))
    count = kept + best + 1  # one is written before the oldest is removed
    needed, there = count * size, sum(map(os.path.getsize, snapshots.all_in(out)))
    free = shutil.disk_usage(output.nearest_folder(out)).free
    if needed - there > free:
        raise DoesNotFit(
            f"{out}: {count} snapshots need {estimates.in_words(needed)}, and {estimates.in_words(free)} are free; "
            f"lower snapshot.keep, which is {config.snapshot.keep}, or give another --out"
        )
    return (
        f"disk: {count} snapshots of {estimates.in_words(size)}, {estimates.in_words(needed)} of "
        f"{estimates.in_words(free)} that are free"
    )


def dry_run(config, trainer, report, train, val, out, ranks):
    """Estimates memory, disk space and time, with some real steps; the trainer is of no use afterwards.

    Args:
        config: :class:`mixprec.config.Config`.
        trainer: from :func:`mixprec.training.trainer.build_trainer`.
        report: of the conversion.
        train: training images.
        val: validation images, or ``None``.
        out: results folder; it need not exist.
        ranks: of :mod:`mixprec.training.processes`; the trainer is one that talks to no other rank.

    Returns:
        str: tables for the console.

    Raises:
        DoesNotFit: there is not enough memory, or disk space.
    """
    memory = estimates.memory(config, trainer, report, len(train), 0 if val is None else len(val), ranks)
    if memory.needed * memory.sharing > memory.available:
        raise DoesNotFit(_too_much(config, memory))
    disk = check_disk(config, trainer, len(train), out, ranks.size)
    trainer.updater.memory = None  # its place is in the results folder
    try:
        time = timing.measure(config, trainer, train, ranks.size)
        largest = at_largest(config)
        activations = kept_activations.compared(largest, trainer, timing.some_images(largest, trainer, train, time))
    finally:
        trainer.updater.finalize()
    return f"{memory}\n\n{activations}\n\n{disk}\n\n{time}"


def _snapshots(config, images, ranks):
    """The number of snapshots that a run writes, the one at its end included."""
    period, unit = config.snapshot.trigger
    epochs = config.training.epochs
    length = epochs if unit == "epoch" else round(Steps(config, images, ranks).until(epochs))
    return -(-length // period)


def _too_much(config, memory):
    largest = memory.largest
    key = largest.key
    if largest.images is not None and key == "training.batch_size":
        alone = memory.needed - sum(part.size - part.size // (part.images or 1) for part in memory.together)
        if alone * memory.sharing > memory.available:  # one image is too much
            key = "data.size"
    if largest.when != "evaluation" and key in ("training.batch_size", "data.size"):
        key = _of_stage(config, key)
    section, _, name = key.partition(".")
    value, free = getattr(getattr(config, section), name), estimates.in_words(memory.available)
    value = list(value) if isinstance(value, tuple) else value
    when = f" in the {largest.when}" if largest.when == "evaluation" else ""
    when += f" for each of {memory.sharing} ranks" if memory.sharing > 1 else ""
    return (
        f"{key} {value}: needs about {estimates.in_words(memory.needed)}{when}, most of it for {largest.name}, and "
        f"{memory.where} has {free} free; {_ADVICE.get(key, 'lower it')}"
    )


def _of_stage(config, key):
    """Returns the key that says it for the stage of training which needs most."""
    if largest_stage(config).first == max((0, *config.progressive.until)):
        return key
    is_of_batches = key == "training.batch_size" and config.progressive.batch_sizes
    return "progressive.batch_sizes" if is_of_batches else "progressive.sizes"


def _snapshot(config, trainer):
    """Number of bytes of a snapshot: state of the optimizer is not there before the first step."""
    optimizer = trainer.updater.get_optimizer("main")
    arrays = snapshots.contents(optimizer.target).values()
    size = sum(np.asarray(array).nbytes if np.isscalar(array) else getattr(array, "nbytes", 0) for array in arrays)
    size += estimates.state(optimizer)
    size += 2 * 4 * estimates.curvature(optimizer) // 2  # of averages and inverses one triangle
    if config.training.ema_decay is not None:
        size += estimates.average(trainer)
    return size
