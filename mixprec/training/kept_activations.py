"""What layers keep for the backward pass: the config section ``memory``, and a comparison of what it could be.

The training command calls :func:`limit` when the trainer is there, and the dry run calls :func:`compared`.
"""

import dataclasses
import os
import tempfile

import numpy as np
from chainer import backend

import mixprec
from mixprec.activation_memory.budget import LARGEST, check_budget, in_bytes
from mixprec.activation_memory.network_blocks import blocks_of
from mixprec.activation_memory.offloading import SMALLEST
from mixprec.activation_memory.planning import DoesNotFit, least, plan
from mixprec.activation_memory.recomputation import keeping_all
from mixprec.activation_memory.recording import Bus
from mixprec.backends.copies import copies_for
from mixprec.command_line import one_line
from mixprec.messages import OneLineError
from mixprec.training import estimate as estimates
from mixprec.training.networks import EXAMPLE

_ROUNDS = 3  # in two of which a round is recorded
_SHARE = 0.8  # of what is free; the rest is for graphs, workspaces and batches made ahead, which the guess leaves out


def limit(config, trainer, report, out, ranks):
    """Does what the section ``memory`` says: marks blocks that are recomputed, and gives the updater what offloads.

    Args:
        config: :class:`mixprec.config.Config`.
        trainer: from :func:`mixprec.training.trainer.build_trainer`.
        report: of the conversion.
        out: results folder.
        ranks: of :mod:`mixprec.training.processes`.

    Returns:
        list of str: what it has done, for the console.

    Raises:
        OneLineError: ``memory.to`` does not go with the device, or is no folder.
    """
    settings, updater, lines = config.memory, trainer.updater, []
    is_blocks = settings.recompute == "blocks"
    if settings.recompute == "auto" and settings.budget is None:
        guess = estimates.first_guess(config, trainer, report, ranks)
        is_blocks = not dataclasses.replace(guess, available=int(_SHARE * guess.available)).fits
    if is_blocks:
        updater.blocks = _found(trainer, config.data.size)
        for block in updater.blocks.blocks:
            mixprec.recompute(block.link)
        kept, all_kept = updater.blocks.kept_with, updater.blocks.kept
        lines.append(
            f"memory: {len(updater.blocks.blocks)} blocks are computed again in the backward pass; layers keep "
            f"{estimates.in_words(kept // EXAMPLE)} for an image, not {estimates.in_words(all_kept // EXAMPLE)}"
            if updater.blocks.blocks
            else "memory: no link of the network saves memory if it is computed again; mark functions in its code by "
            "mixprec.recompute, or set memory.budget"
        )
    if settings.budget is not None:
        to = _other_memory(settings.to, updater.device, out)
        updater.memory = mixprec.offload(
            settings.budget, to, recompute=settings.recompute != "none", say=_print if ranks.is_first else _say_nothing
        )
        lines.append(f"memory: at most {settings.budget}; what does not fit waits in {_named(to)}")
    return lines


def _print(text):
    print(f"memory:\n{text}", flush=True)


def _say_nothing(text):
    """Other ranks have plans that are alike."""


def _other_memory(to, device, out):
    if isinstance(device, backend.GpuDevice):
        if to not in (None, "host"):
            raise OneLineError(f"'memory.to' is {to!r}; allowed on a GPU: host, or null for the same")
        return "host"
    if to == "host":
        raise OneLineError("'memory.to' is 'host'; allowed on the CPU: a folder, or null for the results folder")
    if to is not None and not (os.path.isdir(to) and os.access(to, os.W_OK)):
        raise OneLineError(
            f"'memory.to' is {to!r}, which is no folder that can be written to; make it, or give another"
        )
    return to or out


def _found(trainer, size):
    model, device = trainer.updater.get_optimizer("main").target, trainer.updater.device
    return blocks_of(model.predictor, device.send(np.zeros((EXAMPLE, 3, size, size), np.float32)))


def _named(to):
    return "pinned memory of the host" if to == "host" else f"a file in {one_line(to)}"


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of keeping activations, for one forward and backward pass of a batch.

    Attributes:
        name: what it is.
        peak: bytes of memory, or ``None`` if it does not fit.
        seconds: expected time of the pass.
        note: more, in words.
    """

    name: str
    peak: int | None
    seconds: float
    note: str = ""


def compared(config, trainer, arrays):
    """Compares all kept, blocks recomputed, and offloaded, by two recorded passes each of a few images.

    Args:
        config: :class:`mixprec.config.Config`.
        trainer: from :func:`mixprec.training.trainer.build_trainer`; it is of no use afterwards.
        arrays: a few images and their labels, on the device.

    Returns:
        tuple: a table, and the bytes at the peak of a step as the config has it.

    Raises:
        OneLineError: no plan meets ``memory.budget``.
    """
    scale = config.training.batch_size / len(arrays[0])
    with tempfile.TemporaryDirectory() as folder:
        to = "host" if isinstance(trainer.updater.device, backend.GpuDevice) else folder
        copies = copies_for(arrays[0], to)
        bus = Bus(*copies.bus())
        total = copies.total()
        copies.close()
        with keeping_all():
            recording = _scaled(_recorded(trainer, arrays, to, scale), scale)
        kept = plan(recording, None, bus)
        ways = [Way("all kept", kept.peak, kept.seconds), *_recomputed(config, trainer, arrays, to, scale)]
    own = [ways[0] if trainer.updater.blocks is None else ways[-1]]
    smallest = least(recording, smallest=SMALLEST)
    budget = config.memory.budget
    budget = smallest if budget is None else in_bytes(check_budget(budget), total)
    name = "offloaded, to the least" if config.memory.budget is None else f"offloaded, {config.memory.budget}"
    for recompute in (False, True):
        note = ", or recomputed by layers" if recompute else ""
        try:
            found = plan(recording, budget, bus, recompute=recompute, smallest=SMALLEST)
            ways.append(Way(name + note, found.schedule.peak, found.schedule.seconds))
        except DoesNotFit as error:
            least_words = estimates.in_words(error.least)
            ways.append(Way(name + note, None, 0.0, f"does not fit, {least_words} is the least that would do"))
    if all(way.peak is None for way in ways[-2:]):
        raise OneLineError(
            f"memory.budget {config.memory.budget}: a step {ways[-1].note}; raise it, or lower training.batch_size"
        )
    if config.memory.budget is not None:
        own = [way for way in ways[-2:] if way.peak is not None]
    lines = [
        f"activations of {config.training.batch_size} images, expected from passes of {len(arrays[0])}; memory is that "
        "of the whole process on its device"
    ]
    for way in ways:
        numbers = (
            way.note
            if way.peak is None
            else f"{estimates.in_words(way.peak):>10}{way.seconds:11.3g} s  {way.seconds / kept.seconds:6.2f} x"
        )
        lines.append(f"  {way.name:50}{numbers}")
    return "\n".join(lines), min(way.peak for way in own)


def _recorded(trainer, arrays, to, scale):
    """Returns the recording of a forward and backward pass and an update."""
    memory = mixprec.offload(LARGEST, to, smallest=int(SMALLEST / scale))
    optimizer = trainer.updater.get_optimizer("main")
    for _ in range(_ROUNDS):
        with memory:
            optimizer.update(trainer.updater.loss_func or optimizer.target, *arrays)
    return memory.plans[0].recording


def _recomputed(config, trainer, arrays, to, scale):
    """Yields how it is with recomputed blocks; nothing if there are none."""
    marked = trainer.updater.blocks is not None
    blocks = trainer.updater.blocks or _found(trainer, config.data.size)
    if not blocks.blocks:
        return
    for block in blocks.blocks:
        mixprec.recompute(block.link)
    found = plan(_scaled(_recorded(trainer, arrays, to, scale), scale), None, Bus(1.0, 1.0))
    yield Way(f"{len(blocks.blocks)} blocks recomputed", found.peak, found.seconds)
    if not marked:
        for block in blocks.blocks:
            mixprec.recompute(block.link, on=False)


def _scaled(recording, factor):
    """Returns a recording of as many times the images: what does not grow with them is there in all events."""
    fixed = min(event.others for event in recording.events)
    events = [
        dataclasses.replace(event, seconds=event.seconds * factor, others=fixed + int((event.others - fixed) * factor))
        for event in recording.events
    ]
    buffers = []
    for buffer in recording.buffers:
        again = buffer.recomputation
        if again is not None:
            again = dataclasses.replace(again, seconds=again.seconds * factor)
        buffers.append(dataclasses.replace(buffer, size=int(buffer.size * factor), recomputation=again))
    return dataclasses.replace(recording, events=tuple(events), buffers=tuple(buffers))
