"""A whole run of the bars: all rows at all batch sizes, and a record that is complete as far as it goes."""

import dataclasses
import fnmatch
import math
import time
from collections.abc import Callable

from benchmarks import cupti, machine
from benchmarks.bars import chainer_rows, config_rows, pytorch_rows, record, row_schedule, sequence_rows
from benchmarks.bars.row_statistics import row_of
from benchmarks.bars.row_worker import Task
from benchmarks.bars.sequences import SEQUENCES, batch_of
from benchmarks.command_arguments import ArgumentsError

PEERS = ("pytorch",)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        arch: name of the network, or of a task of :mod:`benchmarks.bars.sequences`.
        batch: numbers of images or sequences in a batch.
        size: height and width of an image in pixels; ``None`` for sequences.
        blocks: number of timed blocks of each row.
        block_steps: number of timed steps in a block, see :class:`~benchmarks.bars.row_schedule.Timing`.
        limit: seconds after which a row is given up whose block does not answer.
        minutes: after which nothing new begins, or ``None``.
        peer: ``"pytorch"`` or ``None``.
        rows: patterns of the names of rows, as in a shell; ``None`` for all.
        prepare_limit: seconds after which a row is given up that is not warm, ``None`` for ``limit``.
    """

    arch: str
    batch: list
    size: int | None
    blocks: int
    block_steps: int
    limit: float
    minutes: float | None
    peer: str | None
    rows: list | None
    prepare_limit: float | None = None


def defaults(specifier, task="images"):
    """Returns what is measured on a device by default.

    Args:
        specifier: of the device.
        task: ``"images"``, or one of :mod:`benchmarks.bars.sequences`.

    Returns:
        dict of ``arch``, ``batch`` (a list of batch sizes), ``size`` (pixels) and ``block_steps``
    """
    if task in SEQUENCES:
        return {"arch": task, "batch": [SEQUENCES[task].batch], "size": None, "block_steps": 10}
    if specifier == "@numpy":
        return {"arch": "resnet18", "batch": [8], "size": 64, "block_steps": 10}
    return {"arch": "resnet50", "batch": [32, 64, 128, 256, 512], "size": 224, "block_steps": 30}


def bars_of(settings, specifier, batch):
    """Returns the list of :class:`~benchmarks.bars.row_worker.BenchmarkRow` of a run at one batch size.

    Args:
        settings: :class:`Settings`.
        specifier: of the device.
        batch: images or sequences in a batch.

    Raises:
        ArgumentsError: a pattern names no row.
    """
    if settings.arch in SEQUENCES:
        bars = sequence_rows.bars(specifier)
    else:
        bars = chainer_rows.bars(specifier)
        bars += config_rows.bars(specifier, arch=settings.arch, batch=batch, size=settings.size)
    if settings.peer is not None:
        bars += pytorch_rows.bars(specifier, settings.arch)
    if settings.rows is None:
        return bars
    for pattern in settings.rows:
        if not any(fnmatch.fnmatchcase(bar.name, pattern) for bar in bars):
            names = ", ".join(repr(bar.name) for bar in bars)
            raise ArgumentsError(f"--rows {pattern!r}: no such row; there are {names}")
    return [bar for bar in bars if any(fnmatch.fnmatchcase(bar.name, pattern) for pattern in settings.rows)]


def turns_of(settings, specifier):
    """Returns how often ``progress`` of :func:`run` will be called.

    Raises:
        ArgumentsError: a pattern names no row.
    """
    return sum(row_schedule.calls(bars_of(settings, specifier, batch), settings.blocks) for batch in settings.batch)


def run(networks, settings, specifier, device, *, progress: Callable = lambda name: None):
    """Measures all rows, one batch size after the other.

    Args:
        networks: dict from names to callables, at the top of a module, from the number of classes to a Chainer link
            from images (N, 3, size, size) to logits.
        settings: :class:`Settings`.
        specifier: of the device.
        device: what it is, in words.
        progress: see :func:`benchmarks.bars.row_schedule.measure`.

    Yields:
        ``(record, batch)``: the record of all so far, see :mod:`benchmarks.bars.record`, after each round of
        blocks and in the end; and the batch size that this was the end of, or ``None``.

    Raises:
        ArgumentsError: a pattern names no row.
    """
    everything = [bars_of(settings, specifier, batch) for batch in settings.batch]
    kind = "cpu" if specifier == "@numpy" else "gpu"
    count = None if kind == "cpu" or cupti.why_not() else cupti.counting
    made, rows, is_cut = machine.record(), [], False
    firsts = chainer_rows.base(specifier), chainer_rows.FP32  # of images, of sequences
    end = math.inf if settings.minutes is None else time.monotonic() + 60 * settings.minutes
    numbers = settings.blocks, settings.block_steps, settings.limit, settings.minutes
    timing = row_schedule.Timing(*numbers, end=end, prepare_limit=settings.prepare_limit)

    def written(more=(), *, complete=False):
        return record.as_json([*rows, *more], settings, made, device, kind, complete=complete)

    for bars, batch in zip(everything, settings.batch, strict=True):
        task = Task(settings.arch, networks.get(settings.arch), specifier, batch, settings.size)
        items = batch_of(settings.arch, batch)[1] if settings.arch in SEQUENCES else None
        for results in row_schedule.measure(bars, task, timing, count=count, progress=progress):
            base = next((result.blocks for result in results if result.bar.name in firsts), ())
            found = [row_of(batch, result, base, items) for result in results]
            yield written(found), None
        rows += found
        is_cut = is_cut or any(result.is_cut for result in results)
        yield written(), batch
    yield written(complete=not is_cut), None
