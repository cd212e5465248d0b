"""The memory, disk space and time that a run needs.

The training command checks memory before it tries the network, and the disk before a run begins. The dry run tries some
steps, and prints all needs.
"""

import dataclasses
import os
import shutil

import numpy as np
from chainer import links

from mixprec.app.config.data import Progressive
from mixprec.app.parts import estimate as estimates
from mixprec.app.parts import kept_activations
from mixprec.app.parts.model import convert_model, make_model
from mixprec.app.parts.networks import EXAMPLE
from mixprec.app.parts.stages import at_largest, largest_stage, stages_of, steps_of
from mixprec.app.run import output, timing
from mixprec.base.messages import OneLineError, counted
from mixprec.kfac.layers import FilterLayer
from mixprec.training import snapshots

_ADVICE = {
    estimates.BATCH: "lower it, and raise training.accumulation_steps by as much to keep the step",
    estimates.MODEL: "choose a smaller network",
    estimates.OPTIMIZER: "choose one with less state, such as SGD",
}
_PIXEL = 256  # bytes that a large network keeps for a pixel of an image, more than ResNets
_SMALL = 224  # pixels: a size for which a network can be tried on any machine


class DoesNotFit(OneLineError):
    """The run needs more than is available; the message is one line and names the key."""


def check_size(config, network, device):
    """Checks that there is memory to try a network with images of all sizes, before that is done.

    If they are so large that they may not fit, which is rare, it is tried with smaller ones.

    Args:
        config: :class:`mixprec.app.config.Config`.
        network: as for :func:`mixprec.app.parts.model.make_model`.
        device: device specifier of Chainer.

    Raises:
        DoesNotFit: there is not enough memory.
    """
    size, (free, where) = max(config.data.size, *config.progressive.sizes, 0), estimates.available_on_host()
    if EXAMPLE * _PIXEL * size**2 <= free:
        return
    try:
        data = dataclasses.replace(config.data, size=_SMALL)
        small = dataclasses.replace(config, data=data, progressive=Progressive())
        report = convert_model(small, make_model(small, network, device), device)
        needed = sum(report.activation_bytes) + report.largest_activation_bytes
    except Exception:  # a network for one image size, which is then tried with this size
        needed = EXAMPLE * _SMALL**2 * 3 * 4
    needed = needed * size**2 // _SMALL**2
    if needed > free:
        key = "data.size" if size == config.data.size else "progressive.sizes with"
        raise DoesNotFit(
            f"{key} {size}: {EXAMPLE} images, on which the network is tried, need about "
            f"{estimates.in_words(needed)}, and {where} has {estimates.in_words(free)} free; lower it"
        )


def check_disk(run):
    """Checks that the disk has room for the snapshots. On resume, existing snapshots count as already stored.

    Args:
        run: :class:`mixprec.app.run.preparation.Run`.

    Returns:
        str: a line for the console.

    Raises:
        DoesNotFit: there is not enough space.
    """
    config, out, size = run.config, run.out, _snapshot(run.config, run.optimizer)
    best = config.snapshot.best and config.data.format != "synthetic"
    kept = min(config.snapshot.keep, _snapshots(config, len(run.train), run.ranks.size))
    count = kept + best + 1  # one is written before the oldest is removed
    needed, there = count * size, sum(map(os.path.getsize, snapshots.all_in(out)))
    free = shutil.disk_usage(output.nearest_folder(out)).free
    if needed - there > free:
        raise DoesNotFit(
            f"{out}: {count} snapshots need {estimates.in_words(needed)}, and {estimates.in_words(free)} are free; "
            f"lower snapshot.keep, which is {config.snapshot.keep}, or give another --out"
        )
    return (
        f"disk: {counted(count, 'snapshot')} of {estimates.in_words(size)}, {estimates.in_words(needed)} of "
        f"{estimates.in_words(free)} that are free"
    )


def dry_run(run, trainer, limit):
    """Measures memory and time with some real steps of the largest stage; the trainer cannot be used afterwards.

    A step that clearly does not fit is not tried. On a CPU a step has only a few images, and the needs are
    extrapolated.

    Args:
        run: :class:`mixprec.app.run.preparation.Run`.
        trainer, limit: from its ``build``. The trainer does not communicate with other ranks.

    Returns:
        str: tables for the console.

    Raises:
        DoesNotFit: there is not enough memory, or disk space.
    """
    config, optimizer, train = run.config, run.optimizer, run.train
    memory = estimates.first_guess(config, optimizer, run.report, limit.kept, run.ranks)
    _check(config, memory)
    disk = check_disk(run)
    held, largest = estimates.held(optimizer.target.device), at_largest(config)
    try:
        time = timing.measure(config, trainer, train, run.ranks.size)
        some = timing.some_images(largest, trainer, train, time)
        activations, peak = kept_activations.compared(largest, optimizer, limit.blocks, some)
    except MemoryError as error:
        key, value, advice = _blamed(config, estimates.BATCH)
        raise DoesNotFit(f"{key} {value}: a step runs out of the memory of {memory.where}; {advice}") from error
    finally:
        trainer.updater.finalize()
    measured = dataclasses.replace(memory, parts={estimates.BATCH: max(0, peak - held)})
    _check(config, measured)
    return f"memory: {measured}\n\n{activations}\n\n{disk}\n\n{time}"


def _check(config, memory):
    """Raises :class:`DoesNotFit` if memory is not enough, with the key that needs the most."""
    if memory.fits:
        return
    key = max(memory.parts, key=memory.parts.get)
    if key == estimates.BATCH:
        stage = largest_stage(config)
        one_image = memory.needed - memory.parts[key] * (stage.batch_size - 1) // stage.batch_size
        if one_image * memory.sharing > memory.available:
            key = "data.size"
    key, value, advice = _blamed(config, key)
    raise DoesNotFit(f"{key} {value}: {memory}; {advice}")


def _blamed(config, key):
    """Returns the key for the stage of training that needs the most, its value, and advice."""
    if key in (estimates.BATCH, "data.size") and largest_stage(config) != stages_of(config)[-1]:
        is_of_batches = key == estimates.BATCH and config.progressive.batch_sizes
        key = "progressive.batch_sizes" if is_of_batches else "progressive.sizes"
    section, _, name = key.partition(".")
    value = getattr(getattr(config, section), name)
    return key, list(value) if isinstance(value, tuple) else value, _ADVICE.get(key, "lower it")


def _snapshots(config, images, ranks):
    """The number of snapshots that a run writes, including the last."""
    period, unit = config.snapshot.trigger
    epochs = config.training.epochs
    length = epochs if unit == "epoch" else round(steps_of(config, images, ranks).until(epochs))
    return -(-length // period)


def _snapshot(config, optimizer):
    """Number of bytes of a snapshot; the optimizer's state, missing before the first step, is added."""
    arrays = snapshots.contents(optimizer.target).values()
    size = sum(np.asarray(array).nbytes if np.isscalar(array) else getattr(array, "nbytes", 0) for array in arrays)
    size += estimates.state(optimizer)
    size += 4 * _curvature(optimizer)  # one triangle of averages and inverses
    if config.training.ema_decay is not None:
        size += 4 * sum(param.size for param in optimizer.target.params() if param.array is not None)
    return size


def _curvature(optimizer):
    """Returns the number of elements of K-FAC's second moments."""
    if optimizer.preconditioner is None:
        return 0
    elements = 0
    for link in optimizer.target.links():
        if isinstance(link, (links.Convolution2D, links.Linear)) and link.W.array is not None:
            groups = getattr(link, "groups", 1)
            sizes = FilterLayer.sizes([each for each in (link.W, link.b) if each is not None], link.W.shape, groups)
            if max(sizes) <= optimizer.preconditioner.largest:
                elements += groups * sum(size**2 for size in sizes)
    return elements
