"""The cost of forward and backward pass on NumPy: plain Chainer's NCHW float32 beside NHWC links of mixprec."""

import dataclasses
import statistics
import time

import chainer
import chainer.links as L
import numpy as np

from benchmarks import machine, resnet_by_hand
from mixprec import functions

# Time over that of plain Chainer in float32 which a row may take.
BOUNDS = {"mixprec.links float32, NHWC": 1.0, "mixprec.links float16, NHWC": 1.5}
_PLAIN = "plain Chainer float32, NCHW"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table; times are medians, in milliseconds.

    Attributes:
        name: what was measured.
        forward: time of the forward pass, the loss and, for NHWC, the conversion of the images among it.
        backward: time of the backward pass.
        spread: half of the distance between the quickest and the slowest turn.
        ratio: time of both over that of plain Chainer.
        bound: what the ratio should not exceed, or ``None``.
    """

    name: str
    forward: float
    backward: float
    spread: float
    ratio: float
    bound: float | None


def measure(network, *, classes=1000, batch=8, size=64, repeats=5):
    """Times forward and backward pass of ResNet-50 on NumPy; the rows take turns, after one to warm up.

    Args:
        network: callable from the number of classes to plain Chainer's ResNet-50, images (N, 3, H, W) to logits.
        classes: number of classes.
        batch: images in a batch.
        size: height and width of an image in pixels.
        repeats: timed turns.

    Returns:
        list of Row
    """
    x = np.random.RandomState(0).normal(size=(batch, 3, size, size)).astype(np.float32)
    t = np.arange(batch, dtype=np.int32) % classes
    steps = {_PLAIN: _plain(L.Classifier(network(classes)), x, t)}
    for dtype in ("float32", "float16"):
        steps[f"mixprec.links {dtype}, NHWC"] = _by_hand(resnet_by_hand.resnet50(classes, dtype), dtype, x, t)
    times = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            times[name].append(_time(*step))
    base = _median_of_sums(times[_PLAIN][1:])
    return [_row(name, turns[1:], base) for name, turns in times.items()]


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = [f"{'':30}{'forward ms':>12}{'backward ms':>13}{'+-':>8}{'ratio':>8}{'bound':>8}"]
    for row in rows:
        bound = "" if row.bound is None else f"{row.bound:8.2f}"
        lines.append(
            f"{row.name:30}{row.forward:12.1f}{row.backward:13.1f}{row.spread:8.1f}{row.ratio:8.2f}{bound}".rstrip()
        )
    return "\n".join(lines)


def as_json(rows, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on."""
    return {"settings": settings, **machine.record(), "rows": [dataclasses.asdict(row) for row in rows]}


def _plain(model, x, t):
    return model, lambda: model(x, t)


def _by_hand(model, dtype, x, t):
    def forward():
        images = functions.to_nhwc(chainer.Variable(x, requires_grad=False), dtype)
        return functions.softmax_cross_entropy(model(images), t)

    return model, forward


def _time(model, forward):
    """Returns the seconds of a forward and of a backward pass."""
    model.cleargrads()
    start = time.perf_counter()
    loss = forward()
    middle = time.perf_counter()
    loss.backward()
    return middle - start, time.perf_counter() - middle


def _median_of_sums(turns):
    return statistics.median(map(sum, turns))


def _row(name, turns, base):
    both = list(map(sum, turns))
    forward, backward = (statistics.median(part) * 1e3 for part in zip(*turns, strict=True))
    spread = (max(both) - min(both)) / 2 * 1e3
    return Row(name, forward, backward, spread, statistics.median(both) / base, BOUNDS.get(name))
