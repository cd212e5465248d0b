"""The roofline of a network as a table: what each level of fusion moves and allows, and which layers that is."""

import dataclasses

from benchmarks import machine
from benchmarks.rates import Rates
from benchmarks.roofline.levels import LEVELS, kernels
from benchmarks.roofline.limit import limit, seconds_of
from benchmarks.roofline.network_layers import layers


@dataclasses.dataclass(frozen=True)
class Row:
    """A level of fusion at one batch size.

    Attributes:
        level: one of :data:`~benchmarks.roofline.levels.LEVELS`.
        batch: images in a batch.
        bytes: that an image moves; weights and their update are shared by the batch.
        flops: floating-point operations of an image.
        kernels: of a step.
        milliseconds: that a step takes at least.
        images_per_second: that this allows.
    """

    level: str
    batch: int
    bytes: float
    flops: float
    kernels: int
    milliseconds: float
    images_per_second: float


@dataclasses.dataclass(frozen=True)
class Part:
    """A group of layers at one level of fusion, in the largest batch.

    Attributes:
        level: one of :data:`~benchmarks.roofline.levels.LEVELS`.
        group: of layers, see :class:`~benchmarks.roofline.network_layers.Layer`; ``"update"`` for the optimizer.
        bytes: that an image moves.
        flops: floating-point operations of an image.
        share: of the least time of a step.
    """

    level: str
    group: str
    bytes: float
    flops: float
    share: float


@dataclasses.dataclass(frozen=True)
class Report:
    """What :func:`report` has found.

    Attributes:
        settings: dict of the arguments, and of the number of parameters.
        rates: of the device.
        rows: list of :class:`Row`.
        parts: list of :class:`Part`.
    """

    settings: dict
    rates: Rates
    rows: list[Row]
    parts: list[Part]

    def table(self):
        """Returns two aligned text tables, of levels and of groups of layers."""
        return "\n".join([*self._head(), *self._levels(), "", *self._groups()])

    def as_json(self):
        """Returns all numbers as a dict for JSON, with versions and machine."""
        return {
            "settings": self.settings,
            **machine.record(),
            "rates": dataclasses.asdict(self.rates),
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "groups": [dataclasses.asdict(part) for part in self.parts],
        }

    def _head(self):
        found, rates = self.settings, self.rates
        flops = rates.flops[found["dtype"]] / 1e12
        return [
            f"{found['arch']}, {found['size']}x{found['size']} pixels, {found['dtype']}, "
            f"{found['parameters'] / 1e6:.2f} M parameters: forward, backward, update",
            f"at {rates.bandwidth / 1e9:.4g} GB/s and {flops:.4g} TFLOP/s, {found['share']:.0%} of those in "
            f"convolutions, {found['gap'] * 1e6:g} us between kernels",
        ]

    def _levels(self):
        batches = self.settings["batches"]
        titles = "".join(f"{f'batch {batch}':>11}" for batch in batches)
        yield f"{f'batch {max(batches)}':18}{'MB/image':>10}{'GFLOP/image':>13}{'kernels':>9}{titles}  images/s"
        for level, text in LEVELS.items():
            rows = {row.batch: row for row in self.rows if row.level == level}
            largest = rows[max(batches)]
            rates = "".join(f"{_rate(rows[batch].images_per_second):>11}" for batch in batches)
            numbers = f"{largest.bytes / 1e6:10.1f}{largest.flops / 1e9:13.3f}{largest.kernels:9}"
            yield f"  {level:16}{numbers}{rates}  {text}"

    def _groups(self):
        titles = "".join(f"{level:>18}" for level in LEVELS)
        yield f"{'MB/image, time':20}{'GFLOP/image':>13}{titles}"
        for group in dict.fromkeys(part.group for part in self.parts):
            parts = {part.level: part for part in self.parts if part.group == group}
            cells = "".join(f"{_part(parts[level]) if level in parts else '':>18}" for level in LEVELS)
            yield f"  {group:18}{max(part.flops for part in parts.values()) / 1e9:13.3f}{cells}".rstrip()


def report(network, *, arch, size, batches, dtype, rates, share=0.7, gap=1e-6, transposes=True):
    """Computes the roofline of a classifier for 1000 classes at every level of fusion.

    Args:
        network: callable from the number of classes to a Chainer link from images (N, 3, size, size) to logits.
        arch: its name.
        size: height and width of an image in pixels.
        batches: numbers of images in a batch.
        dtype: name of the dtype of activations and weights, ``"float32"``, ``"float16"`` or ``"bfloat16"``; or
            ``"tf32"``, float32 that products round.
        rates: :class:`~benchmarks.rates.Rates` of the device.
        share: see :func:`~benchmarks.roofline.limit.limit`;
            :func:`~benchmarks.roofline.limit.assumptions` knows all three for a device.
        gap: likewise.
        transposes: likewise.

    Returns:
        Report

    Raises:
        ValueError: ``dtype`` is none of those.
    """
    found = layers(network, size)
    speed = {"share": share, "gap": gap}
    assumed = {**speed, "transposes": transposes}
    rows = [
        _row(level, batch, limit(found, level, dtype, batch, rates, **assumed)) for batch in batches for level in LEVELS
    ]
    parts = []
    for level in LEVELS:
        computed = kernels(found, level, dtype, max(batches), transposes=transposes)
        parts += _parts(level, computed, max(batches), dtype, rates, speed)
    settings = {"arch": arch, "size": size, "batches": list(batches), "dtype": dtype, "parameters": found.parameters}
    return Report(settings | assumed, rates, rows, parts)


def _row(level, batch, found):
    numbers = found.bytes / batch, found.flops / batch, found.kernels, found.seconds * 1e3, found.images_per_second
    return Row(level, batch, *numbers)


def _parts(level, found, batch, dtype, rates, speed):
    groups = {}
    for kernel in found:
        moved, flops, seconds = groups.get(kernel.group, (0, 0, 0))
        more = seconds_of(kernel, dtype, rates, **speed)
        groups[kernel.group] = moved + kernel.bytes, flops + kernel.flops, seconds + more
    total = sum(seconds for _, _, seconds in groups.values())
    return [
        Part(level, group, moved / batch, flops / batch, seconds / total)
        for group, (moved, flops, seconds) in groups.items()
    ]


def _rate(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _part(part):
    return f"{part.bytes / 1e6:.2f}{part.share:8.1%}"
