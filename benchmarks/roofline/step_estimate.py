"""The step as it is in this checkout, and with other ways to do the same: launches, bytes, and time by the model."""

import dataclasses
import functools

from benchmarks.roofline import h200_model
from benchmarks.step import recorded
from benchmarks.step.launches import totals

_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclasses.dataclass(frozen=True)
class KindTotal:
    """The sums over all launches of a kind.

    Attributes:
        kind: one of :data:`~benchmarks.step.launches.KINDS`, ``"gaps"`` or ``"all"``.
        launches: number of them in a step.
        gigabytes: that they move in a step of the largest batch.
        least: see :class:`~benchmarks.step.launches.Total`.
        microseconds: by the model, a list like the batches.
    """

    kind: str
    launches: int
    gigabytes: float
    least: float
    microseconds: list[float]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A variant of the step: another way to do the same.

    Attributes:
        name: what is done.
        launches: number of them.
        gigabytes: that are moved in a step of the largest batch.
        microseconds: by the model, a list like the batches.
    """

    name: str
    launches: int
    gigabytes: float
    microseconds: list[float]


@dataclasses.dataclass(frozen=True)
class Step:
    """What :func:`step` has found.

    Attributes:
        batches: numbers of images in a batch.
        kinds: list of :class:`KindTotal` of the step as it is.
        ways: list of :class:`Variant`, the first one as it is.
    """

    batches: list[int]
    kinds: list[KindTotal]
    ways: list[Variant]

    @property
    def as_it_is(self):
        """:class:`Variant` of the step of this checkout."""
        return self.ways[0]

    def table(self):
        """Returns two aligned text tables, of kinds of launches and of ways."""
        return "\n".join([*_head(), "", *self._kinds(), "", *self._ways()])

    def as_json(self):
        """Returns all numbers, and what is assumed, as a dict for JSON."""
        return {
            "is": "a model, nothing of it is measured",
            "assumptions": h200_model.ASSUMPTIONS,
            **dataclasses.asdict(self),
        }

    def _kinds(self):
        titles = "".join(f"{f'us, batch {batch}':>15}" for batch in self.batches)
        yield f"{'as it is':22}{'launches':>9}{f'GB, batch {max(self.batches)}':>15}{'least':>9}{titles}"
        for row in self.kinds:
            times = "".join(f"{time:15,.0f}" for time in row.microseconds)
            yield f"  {row.kind:20}{row.launches:9}{row.gigabytes:15.2f}{row.least:9.2f}{times}"

    def _ways(self):
        titles = "".join(f"{f'ms, batch {batch}':>15}{'images/s':>10}{'saved us':>10}" for batch in self.batches)
        yield f"{'':50}{'launches':>9}{f'GB, batch {max(self.batches)}':>15}{titles}"
        for way in self.ways:
            cells = ""
            for batch, time, before in zip(self.batches, way.microseconds, self.as_it_is.microseconds, strict=True):
                cells += f"{time / 1e3:15.2f}{batch / time * 1e6:10,.0f}{before - time:10,.0f}"
            yield f"  {way.name:48}{way.launches:9}{way.gigabytes:15.2f}{cells}"


def step(network, *, arch, size, batches, dtype):
    """Records a captured step, and computes its time on an H200 by :mod:`benchmarks.roofline.h200_model`.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images to logits.
        arch: its name.
        size: height and width of an image in pixels.
        batches: numbers of images in a batch.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``.

    Returns:
        Step
    """
    choices = (recorded.AS_IT_IS, recorded.STATISTICS_APART)
    found = recorded.record(network, arch=arch, size=size, dtype=dtype, choices=choices)
    as_it_is, apart = (found[choice] for choice in choices)
    in_order_of_axes = functools.partial(h200_model.sums_in_order_of_axes, _ITEMSIZES[dtype])
    ways = {
        "as it is": as_it_is,
        "gradients added in the order of the axes": in_order_of_axes(as_it_is),
        "gradients added by launches of their own": h200_model.sums_apart(as_it_is),
        "BN statistics by launches of their own": apart,
    }
    rows = [_way(name, launches, batches) for name, launches in ways.items()]
    return Step(list(batches), _kinds(as_it_is, batches), rows)


def _kinds(launches, batches):
    found = []
    for kind, total in totals(launches, max(batches)).items():
        own = [launch for launch in launches if launch.kind == kind]
        times = [1e6 * sum(h200_model.seconds(launch, batch) for launch in own) for batch in batches]
        found.append(KindTotal(kind, total.launches, total.bytes / 1e9, total.least / 1e9, times))
    gaps = KindTotal("gaps", 0, 0.0, 0.0, [1e6 * h200_model.GAP * len(launches)] * len(batches))
    sums = (sum(getattr(row, name) for row in found) for name in ("launches", "gigabytes", "least"))
    return [
        *found,
        gaps,
        KindTotal(
            "all", *sums, [sum(times) for times in zip(*(row.microseconds for row in [*found, gaps]), strict=True)]
        ),
    ]


def _way(name, launches, batches):
    times = [1e6 * sum(h200_model.seconds(launch, batch) + h200_model.GAP for launch in launches) for batch in batches]
    return Variant(name, len(launches), sum(launch.moved(max(batches)) for launch in launches) / 1e9, times)


def _head():
    yield "a model of a captured step on an H200, from its launches as recorded without a device; nothing is measured:"
    for text, value in h200_model.ASSUMPTIONS.items():
        values = value if isinstance(value, tuple) else (value,)
        yield f"  {text}: {', '.join(f'{each:g}' for each in values)}"
