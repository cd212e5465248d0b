"""Goals for training ResNet-50 on an H100 or an H200, and the distance of the newest measurements from them."""

import dataclasses
import datetime

from benchmarks.bars import chainer_rows, config_rows, pytorch_rows
from benchmarks.bars import record as bars_record

# By the name that CUDA has for it. "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GH200 480GB" and the slices of a GPU,
# "NVIDIA H100 80GB HBM3 MIG 1g.10gb", are other devices, and answer nothing.
GPUS = {"H100": "NVIDIA H100 80GB HBM3", "H200": "NVIDIA H200"}
BATCHES = (256, 32)


@dataclasses.dataclass(frozen=True)
class Goal:
    """A number that our fastest row is to reach.

    Attributes:
        gpu: one of :data:`GPUS`.
        batch: images in a batch.
        text: the goal in words.
        bound: what the number is to be at least, or at most where that is 0.
        key: of the number in a row of a record.
        over: name of the row by whose number it is divided, or ``None``.
    """

    gpu: str
    batch: int
    text: str
    bound: float
    key: str = "median"
    over: str | None = None


def _goals(gpu, rates):
    """The goals for a GPU; ``rates`` has the images a second by batch size, and their names."""
    for batch in BATCHES:
        for rate, name in rates[batch]:
            yield Goal(gpu, batch, f"{name}at least {rate:,} images/s", rate)
        for row in pytorch_rows.RIVALS:
            yield Goal(gpu, batch, f"at least 1.25 times {row}", 1.25, over=row)
        yield Goal(gpu, batch, f"at least 6 times {chainer_rows.CUDNN}", 6, over=chainer_rows.CUDNN)
        yield Goal(gpu, batch, "no host synchronization in a step", 0, "syncs")


GOALS = (
    *_goals("H100", {256: [(7450, ""), (8000, "stretch: ")], 32: [(5500, ""), (6200, "stretch: ")]}),
    *_goals("H200", {256: [(8000, "")], 32: [(5500, "")]}),
)


def ours(rows):
    """Returns our fastest row, the first of equal ones, or ``None`` if none was measured; an ablation is less.

    Args:
        rows: of one batch size, see :mod:`benchmarks.bars.record`.
    """
    return _fastest(row for row in rows if row["group"] in ("config", "precision") or row["name"] in config_rows.WHOLE)


def peer(rows):
    """Returns the fastest row of a peer, or ``None`` if none was measured."""
    return _fastest(row for row in rows if row["group"] == "peer")


def over_peer(rows):
    """Returns the images a second of our fastest row, divided by the fastest peer's, or ``None``."""
    own, other = ours(rows), peer(rows)
    return own["median"] / other["median"] if own and other else None


def answer(goal, records):
    """Compares what was measured with a goal.

    Of each row the newest record counts in which it has all of its blocks, or has failed. Ours is the fastest of
    :data:`~benchmarks.bars.config_rows.WHOLE` on the newest day on which one of these ran.

    Args:
        goal: :class:`Goal`.
        records: of runs, see :mod:`benchmarks.bars.record`.

    Returns:
        ``(measured, gap, source)`` in words; the source has the rows, their days, and whether they ran in one call
    """
    newest = _newest(goal, records)
    whole = [newest[name] for name in config_rows.WHOLE if name in newest]
    day = max((_day(record) for _, record in whole), default=None)
    own = _fastest(row for row, record in whole if _day(record) == day)
    other, beside = newest.get(goal.over, (None, None))
    if own is None or own[goal.key] is None or (goal.over and (other is None or other["reason"])):
        return "not measured", "open", ""
    value, source = own[goal.key], f"{own['name']} ({day})"
    if goal.bound == 0:
        return f"{value:g}", f"missed: {value:g} too many" if value > 0 else "met", source
    measured = f"{value:,.0f}"
    if goal.over:
        value /= other[goal.key]
        measured = f"{value:.2f}"
        same = beside is newest[own["name"]][1]
        source += "; both in one call" if same else f"; {goal.over} ({_day(beside)}), in another call"
    gap = value / goal.bound - 1
    return measured, f"missed: {-gap:.1%} below" if gap < 0 else f"met: {gap:.1%} above", source


def _newest(goal, records):
    """Returns a dict from the names of rows to ``(row, record)``, for the GPU and batch size of a goal."""
    return {
        row["name"]: (row, record)
        for record in sorted(records, key=bars_record.when)
        if record["kind"] == "gpu" and bars_record.gpu_name(record["device"]) == GPUS[goal.gpu]
        if (record["settings"]["arch"], record["settings"]["size"]) == ("resnet50", 224)
        for row in record["rows"]
        if row["batch"] == goal.batch and (row["reason"] or len(row["blocks"]) >= record["settings"]["blocks"])
    }


def _day(record):
    return bars_record.when(record).astimezone(datetime.timezone.utc).date()


def _fastest(rows):
    return max((row for row in rows if not row["reason"]), key=lambda row: row["median"], default=None)
