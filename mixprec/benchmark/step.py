"""The cost of one training step, beside plain Chainer's in the same run."""

import dataclasses
import statistics
import time
import warnings

import chainer
import chainer.links as L
import numpy as np
from chainer import optimizers

import mixprec
from mixprec.benchmark import machine


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was measured.
        milliseconds: median time of a step.
        spread: half of the distance between the quickest and the slowest step, in milliseconds.
        ratio: time over that of plain Chainer in float32.
    """

    name: str
    milliseconds: float
    spread: float
    ratio: float


def measure(network, *, classes=10, batch=64, size=32, steps=5):
    """Times forward, backward and update of a network on NumPy.

    Plain mixed16 Chainer is measured first, because converting a model makes all float16 arithmetic on NumPy fast; the
    other rows take turns, so that a drift of the machine hits all of them alike.

    Args:
        network: callable from the number of classes to a Chainer link from images (N, 3, size, size) to logits.
        classes: number of classes.
        batch: images in a batch.
        size: height and width of an image in pixels.
        steps: number of timed steps; one more is run before.

    Returns:
        list of Row
    """
    x = np.random.RandomState(0).normal(size=(batch, 3, size, size)).astype(np.float32)
    t = np.arange(batch, dtype=np.int32) % classes

    def plain(dtype):
        with chainer.using_config("dtype", dtype):
            model = L.Classifier(network(classes))
        optimizer = optimizers.CorrectedMomentumSGD(lr=0.01).setup(model)
        if dtype is chainer.mixed16:
            optimizer.use_fp32_update()
            optimizer.loss_scaling()
        return optimizer

    def mixed(dtype):
        model = L.Classifier(network(classes))
        mixprec.convert(model, compute=dtype)
        return mixprec.MixedPrecisionOptimizer(optimizers.CorrectedMomentumSGD(lr=0.01)).setup(model)

    mixed16 = plain(chainer.mixed16)
    times = {"plain Chainer float32": [], "mixprec float32": [], "mixprec float16": [], "plain Chainer mixed16": []}
    for _ in range(2):  # a step takes long, and its ratio to the others is not a close one
        times["plain Chainer mixed16"].append(_time_step(mixed16, x.astype(np.float16), t))
    rows = {
        "plain Chainer float32": (plain(np.float32), x),
        "mixprec float32": (mixed("float32"), x),
        "mixprec float16": (mixed("float16"), x.astype(np.float16)),
    }
    for _ in range(steps + 1):
        for name, (optimizer, images) in rows.items():
            times[name].append(_time_step(optimizer, images, t))
    base = statistics.median(times["plain Chainer float32"][1:])
    return [_row(name, seconds[1:], base) for name, seconds in times.items()]


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = [f"{'':24}{'ms a step':>12}{'+-':>8}{'ratio':>8}"]
    lines += [f"{row.name:24}{row.milliseconds:12.1f}{row.spread:8.1f}{row.ratio:8.2f}" for row in rows]
    return "\n".join(lines)


def as_json(rows, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on."""
    return {
        "settings": settings,
        **machine.record(),
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _time_step(optimizer, x, t):
    # mixed16 overflows, and warns of it, while it looks for its loss scale
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        optimizer.update(optimizer.target, x, t)
        return time.perf_counter() - start


def _row(name, seconds, base):
    median = statistics.median(seconds)
    return Row(name, median * 1e3, (max(seconds) - min(seconds)) / 2 * 1e3, median / base)
