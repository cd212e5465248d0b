"""The memory that layers keep for the backward pass: the config section ``memory``, and a comparison of its choices.

The training command calls :func:`limit` before it builds the trainer, and the dry run calls :func:`compared`.
"""

import dataclasses
import os
import tempfile
from typing import Any

import numpy as np

from mixprec.activation_memory.budget import LARGEST, check_budget, in_bytes
from mixprec.activation_memory.network_blocks import blocks_of
from mixprec.activation_memory.offloading import SMALLEST, offload
from mixprec.activation_memory.planning import DoesNotFit, least, plan
from mixprec.activation_memory.recomputation import keeping_all, recompute
from mixprec.activation_memory.recording import Bus
from mixprec.app.parts import estimate as estimates
from mixprec.app.parts.devices import on_gpu
from mixprec.app.parts.networks import EXAMPLE
from mixprec.backends.copies import copies_for
from mixprec.base.messages import OneLineError, one_line

_ROUNDS = 3  # two of them are recorded
_SHARE = 0.8  # of the free memory; the guess leaves out graphs, workspaces and batches made ahead


@dataclasses.dataclass(frozen=True)
class Limit:
    """The limits of the memory of activations.

    Attributes:
        memory: from :func:`mixprec.offload`, to be entered for each step; ``None`` without ``memory.budget``.
        blocks: :class:`~mixprec.activation_memory.network_blocks.Blocks` that are recomputed, or ``None``.
        kept: bytes that layers keep for the example on which the network was tried.
        lines: list of str, for the console.
    """

    memory: Any
    blocks: Any
    kept: int
    lines: list


def limit(config, optimizer, report, out, ranks):
    """Applies the section ``memory``: marks blocks for recomputation, and prepares offloading.

    Args:
        config: :class:`mixprec.app.config.Config`.
        optimizer: from :func:`mixprec.app.parts.optimizers.build_optimizer`; its model is converted.
        report: report of the conversion.
        out: results folder.
        ranks: from :mod:`mixprec.distributed.processes`.

    Returns:
        Limit

    Raises:
        OneLineError: ``memory.to`` does not fit the device, or is not a folder.
    """
    settings, model, lines = config.memory, optimizer.target, []
    memory, blocks, kept = None, None, report.activation_bytes[1]
    is_blocks = settings.recompute == "blocks"
    if settings.recompute == "auto" and settings.budget is None:
        guess = estimates.first_guess(config, optimizer, report, kept, ranks)
        is_blocks = not dataclasses.replace(guess, available=int(_SHARE * guess.available)).fits
    if is_blocks:
        blocks = _found(model, config.data.size)
        _recompute(blocks)
        kept = blocks.kept_with + blocks.largest
        lines.append(
            f"memory: {len(blocks.blocks)} blocks are recomputed in the backward pass; layers keep "
            f"{estimates.in_words(blocks.kept_with // EXAMPLE)} per image instead of "
            f"{estimates.in_words(blocks.kept // EXAMPLE)}"
            if blocks.blocks
            else "memory: recomputing any link of the network saves no memory; mark functions in its code by "
            "mixprec.recompute, or set memory.budget"
        )
    if settings.budget is not None:
        to = _other_memory(settings.to, model.device, out)
        say = _print if ranks.is_first else str  # other ranks print nothing: their plans are similar
        memory = offload(settings.budget, to, recompute=settings.recompute != "none", say=say)
        kept = 0  # the rest waits elsewhere
        lines.append(f"memory: at most {settings.budget}; the rest waits in {_named(to)}")
    return Limit(memory, blocks, kept, lines)


def _print(text):
    print(f"memory:\n{text}", flush=True)


def _other_memory(to, device, out):
    if on_gpu(device):
        if to not in (None, "host"):
            raise OneLineError(f"'memory.to' is {to!r}; allowed on a GPU: host, or null for the same")
        return "host"
    if to == "host":
        raise OneLineError("'memory.to' is 'host'; allowed on the CPU: a folder, or null for the results folder")
    if to is not None and not (os.path.isdir(to) and os.access(to, os.W_OK)):
        raise OneLineError(f"'memory.to' is {to!r}, which is not a writable folder; make it, or give another")
    return to or out


def _found(model, size):
    return blocks_of(model.predictor, model.device.send(np.zeros((EXAMPLE, 3, size, size), np.float32)))


def _recompute(blocks):
    for block in blocks.blocks:
        recompute(block.link)


def _named(to):
    return "pinned memory of the host" if to == "host" else f"a file in {one_line(to)}"


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of keeping activations, for one forward and backward pass of a batch.

    Attributes:
        name: its name.
        peak: bytes of memory, or ``None`` if it does not fit.
        seconds: expected time of the pass.
        note: further remarks.
    """

    name: str
    peak: int | None
    seconds: float
    note: str = ""


def compared(config, optimizer, blocks, arrays):
    """Compares keeping all activations, recomputing blocks, and offloading, by two recorded passes of few images.

    Args:
        config: :class:`mixprec.app.config.Config`.
        optimizer: as for :func:`limit`; it cannot be used afterwards.
        blocks: blocks that are recomputed, see :class:`Limit`.
        arrays: a few images and their labels, on the device.

    Returns:
        tuple: a table, and the peak bytes of a step with this config.

    Raises:
        OneLineError: no plan meets ``memory.budget``.
    """
    scale = config.training.batch_size / len(arrays[0])
    with tempfile.TemporaryDirectory() as folder:
        to = "host" if on_gpu(optimizer.target.device) else folder
        copies = copies_for(arrays[0], to)
        bus, total = Bus(*copies.bus()), copies.total()
        copies.close()
        with keeping_all():
            recording = _recorded(optimizer, arrays, to, scale)
        kept = plan(recording, None, bus)
        again = _found(optimizer.target, config.data.size) if blocks is None else blocks
        ways = [Way("all kept", kept.peak, kept.seconds), *_recomputed(again, optimizer, arrays, to, scale)]
    own = [ways[0] if blocks is None else ways[-1]]
    smallest = least(recording, smallest=SMALLEST)
    given = config.memory.budget
    budget = smallest if given is None else in_bytes(check_budget(given), total)
    name = f"offloaded, {'to the least' if given is None else given}"
    for by_layers, also in ((False, ""), (True, ", or recomputed by layers")):
        try:
            found = plan(recording, budget, bus, recompute=by_layers, smallest=SMALLEST)
            ways.append(Way(name + also, found.schedule.peak, found.schedule.seconds))
        except DoesNotFit as error:
            least_words = estimates.in_words(error.least)
            ways.append(Way(name + also, None, 0.0, f"does not fit, {least_words} is the least that would do"))
    offloaded = [way for way in ways[-2:] if way.peak is not None]
    if not offloaded:
        raise OneLineError(f"memory.budget {given}: a step {ways[-1].note}; raise it, or lower training.batch_size")
    own = own if given is None else offloaded
    lines = [
        f"activations of {config.training.batch_size} images, expected from passes of {len(arrays[0])}; memory is "
        "the whole process's on its device"
    ]
    for way in ways:
        numbers = way.note
        if way.peak is not None:
            numbers = f"{estimates.in_words(way.peak):>10}{way.seconds:11.3g} s  {way.seconds / kept.seconds:6.2f} x"
        lines.append(f"  {way.name:50}{numbers}")
    return "\n".join(lines), min(way.peak for way in own)


def _recorded(optimizer, arrays, to, scale):
    """Returns the recording of a forward and backward pass and an update, scaled."""
    memory = offload(LARGEST, to, smallest=int(SMALLEST / scale))
    for _ in range(_ROUNDS):
        with memory:
            optimizer.update(optimizer.target, *arrays)
    return _scaled(memory.plans[0].recording, scale)


def _recomputed(blocks, optimizer, arrays, to, scale):
    """Yields the :class:`Way` with recomputed blocks; nothing if there are none."""
    if not blocks.blocks:
        return
    _recompute(blocks)
    found = plan(_recorded(optimizer, arrays, to, scale), None, Bus(1.0, 1.0))
    yield Way(f"{len(blocks.blocks)} blocks recomputed", found.peak, found.seconds)


def _scaled(recording, factor):
    """Returns a recording scaled to more images; memory that does not grow with them is in all events."""
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
