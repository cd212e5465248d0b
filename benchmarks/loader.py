"""Images a second of the loaders, beside Chainer's iterators with Pillow, and how long a trainer waits.

All of them decode JPEGs, crop at random, resize to 224x224, flip, normalize and hand out batches of float16 NHWC.
"""

import contextlib
import dataclasses
import math
import statistics
from importlib import metadata

from tqdm import tqdm

from benchmarks import compared_loaders, compared_optimizers, machine
from benchmarks.compared_loaders import DALI, PILLOW
from benchmarks.processes import Worker

RATE = 200  # images a second of the trainer


@dataclasses.dataclass(frozen=True)
class Row:
    """One loader.

    Attributes:
        name: of the loader.
        rate: median of images a second; ``None`` if it could not be measured.
        spread: half of the distance between the quickest and the slowest turn, in images a second.
        ratio: median of DALI's rate over this one in the same turn: a busy machine slows both; ``None`` without DALI.
        waiting: share of its time that a trainer waits for batches, or ``None``.
        note: why it could not be measured.
    """

    name: str
    rate: float | None = None
    spread: float | None = None
    ratio: float | None = None
    waiting: float | None = None
    note: str = ""


def measure(images, *, gpu=None, batch=64, threads=2, repeats=7, seconds=10):
    """Times the loaders, each in a process of its own, in turns; then lets a trainer take batches of mixprec's.

    In a turn as many images are delivered as there are, and nothing else is to be done. The trainer takes as long for a
    batch as training at 200 images/s does, and sleeps in the meantime, as beside a GPU.

    Args:
        images: a source of images, see :mod:`mixprec.data.sources.folders`.
        gpu: number of the GPU that DALI decodes on, too; ``None`` for none.
        batch: images in a batch, at most as many as there are.
        threads: number of threads of DALI, or of processes.
        repeats: number of timed turns; one more is run before.
        seconds: how long the trainer trains, at least.

    Returns:
        list of :class:`Row`
    """
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in compared_loaders.names(gpu)}
        how = images, batch, threads, gpu
        failed = {name: own.attempt(compared_loaders.prepare, name, *how)[1] for name, own in workers.items()}
        ready = {name: own for name, own in workers.items() if not failed[name]}
        waited = [name for name in (DALI, PILLOW) if name in ready]
        total = (repeats + 1) * len(ready) + len(waited)
        with tqdm(total=total, desc="Measuring loaders", unit="turn", leave=False, disable=None) as bar:

            def timed(name, function, *arguments):
                found = ready[name].call(function, *arguments)
                bar.update()
                return found

            def turn(name):
                return timed(name, compared_loaders.turn, len(images) // batch)

            times = compared_optimizers.take_turns({name: name for name in ready}, repeats, turn)
            steps = math.ceil(seconds * RATE / batch)
            waiting = {name: timed(name, compared_loaders.waiting, RATE, steps) for name in waited}
        for own in ready.values():
            own.call(compared_loaders.end)
    return [_row(name, times, waiting.get(name), why) for name, why in failed.items()]


def _row(name, times, waiting, why):
    if why:
        return Row(name, note=why)
    rates = [1 / seconds for seconds in times[name]]
    ratio = None
    if DALI in times:
        ratio = statistics.median(own / dali for own, dali in zip(times[name], times[DALI], strict=True))
    return Row(name, statistics.median(rates), (max(rates) - min(rates)) / 2, ratio, waiting)


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = [f"{'':40}{'images/s':>10}{'+-':>8}{'DALI over it':>14}{f'waiting at {RATE}/s':>18}"]
    for row in rows:
        if row.rate is None:
            lines.append(f"  {row.name:38}{row.note}")
            continue
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        waiting = "" if row.waiting is None else f"{row.waiting:.2%}"
        lines.append(f"  {row.name:38}{row.rate:10.0f}{row.spread:8.0f}{ratio:>14}{waiting:>18}".rstrip())
    return "\n".join(lines)


def as_json(rows, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on."""
    return machine.as_json(rows, settings, pillow=metadata.version("pillow"))
