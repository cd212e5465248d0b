"""Images a second of the loaders on the CPU, beside Chainer's iterators with Pillow, and how long a trainer waits.

All of them decode JPEGs, crop at random, resize to 224x224, flip, normalize and hand out batches of float16 NHWC.
"""

import contextlib
import dataclasses
import math
import statistics

import PIL
from tqdm import tqdm

from benchmarks import compared_optimizers, machine
from benchmarks.compared_loaders import (
    CHAINER,
    COMPUTING,
    DALI,
    NAMES,
    PILLOW,
    SERIAL,
    SLEEPING,
    end,
    prepare,
    train,
    turn,
)
from benchmarks.processes import Worker
from mixprec.data.data_error import DataError
from mixprec.data.loaders.pipeline import require_dali

WANTED = {CHAINER: 1.2, SERIAL: 2.0}  # how many times as fast as these DALI should be
BOUND = 0.05  # share of its time that a trainer may wait for DALI
RATE = 200  # images a second of its training


@dataclasses.dataclass(frozen=True)
class Speed:
    """One line of the first table.

    Attributes:
        name: of the loader.
        rate: median of images a second; ``None`` if it could not be measured.
        spread: half of the distance between the quickest and the slowest turn, in images a second.
        ratio: median of DALI's rate over this one in the same turn: a busy machine slows both; ``None`` without DALI.
        wanted: what the ratio should be at least, or ``None``.
        note: why it could not be measured.
    """

    name: str
    rate: float | None = None
    spread: float | None = None
    ratio: float | None = None
    wanted: float | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Wait:
    """One line of the second table.

    Attributes:
        name: of the loader.
        trainer: what the trainer that takes them does in the meantime.
        rate: images a second that it gets.
        share: of its time that it waits for batches.
        bound: what the share should be less than, or ``None``.
    """

    name: str
    trainer: str
    rate: float
    share: float
    bound: float | None


def measure(images, *, batch=64, threads=2, repeats=7, seconds=10):
    """Times the loaders, each in a process of its own, in turns; then lets trainers take their batches.

    In a turn as many images are delivered as there are, and nothing else is to be done. A trainer takes as long for a
    batch as training at 200 images/s does. One sleeps in the meantime, as a trainer does whose steps run on a GPU;
    another one keeps a core busy.

    Args:
        images: a source of images, see :mod:`mixprec.data.sources.folders`.
        batch: images in a batch, at most as many as there are.
        threads: number of threads of DALI, or of processes.
        repeats: number of timed turns; one more is run before.
        seconds: how long each trainer trains, at least.

    Returns:
        ``(speeds, waits)``: a list of :class:`Speed` and one of :class:`Wait`.
    """
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in NAMES}
        failed = {name: own.attempt(prepare, name, images, batch, threads)[1] for name, own in workers.items()}
        ready = {name: own for name, own in workers.items() if not failed[name]}
        pairs = [(name, trainer) for name in (DALI, PILLOW) for trainer in (SLEEPING, COMPUTING) if name in ready]
        steps = (repeats + 1) * len(ready) + len(pairs)
        with tqdm(total=steps, desc="Measuring loaders", unit="turn", leave=False, disable=None) as bar:

            def timed(name, function, *arguments):
                found = ready[name].call(function, *arguments)
                bar.update()
                return found

            names = {name: name for name in ready}
            times = compared_optimizers.take_turns(names, repeats, lambda name: timed(name, turn, len(images) // batch))
            steps = math.ceil(seconds * RATE / batch)
            waits = [Wait(*pair, *timed(pair[0], train, pair[1], RATE, steps), _bound(*pair)) for pair in pairs]
        for own in ready.values():
            own.call(end)
    return [_speed(name, times, why) for name, why in failed.items()], waits


def table(speeds, waits):
    """Returns what :func:`measure` found as aligned text tables."""
    lines = [f"{'':40}{'images/s':>10}{'+-':>8}{'DALI over it':>14}{'wanted':>10}"]
    lines += map(_speed_line, speeds)
    lines += ["", f"{f'with a trainer beside it, {RATE} images/s':40}{'images/s':>10}{'waiting':>22}{'wanted':>10}"]
    for row in waits:
        wanted = "" if row.bound is None else f"{f'< {row.bound:.0%}':>10}  {_met(row.share < row.bound)}"
        lines.append(f"  {f'{row.name}: it {row.trainer}':52}{row.rate:6.0f}{row.share:12.2%}{wanted}")
    return "\n".join(lines)


def as_json(speeds, waits, gpu, **settings):
    """Returns rows, those of a GPU and settings as a dict for JSON, with what they were measured on."""
    return {
        "settings": settings,
        **machine.record(),
        "pillow": PIL.__version__,
        "dali": _dali_version(),
        "rows": [dataclasses.asdict(row) for row in speeds],
        "waiting": [dataclasses.asdict(row) for row in waits],
        "gpu": gpu,
    }


def _speed(name, times, why):
    if why:
        return Speed(name, note=why)
    rates = [1 / seconds for seconds in times[name]]
    ratio = None
    if DALI in times:
        ratio = statistics.median(own / dali for own, dali in zip(times[name], times[DALI], strict=True))
    return Speed(name, statistics.median(rates), (max(rates) - min(rates)) / 2, ratio, WANTED.get(name))


def _bound(name, trainer):
    return BOUND if (name, trainer) == (DALI, SLEEPING) else None


def _speed_line(row):
    if row.rate is None:
        return f"  {row.name:38}{row.note}"
    line = f"  {row.name:38}{row.rate:10.0f}{row.spread:8.0f}"
    if row.ratio is not None:
        line += f"{row.ratio:14.2f}"
        if row.wanted is not None:
            line += f"{f'>= {row.wanted:.1f}':>10}  {_met(row.ratio >= row.wanted)}"
    return line


def _met(is_met):
    return "met" if is_met else "MISSED"


def _dali_version():
    try:
        return require_dali().__version__
    except DataError:
        return None
