"""Goals for ResNet-50 on an H200, and the distance of a run from them."""

import dataclasses
import re
from collections.abc import Callable

from benchmarks.bars import chainer_rows, config_rows, pytorch_rows
from benchmarks.bars import record as bars_record

OURS = ("config", "precision")  # groups of rows; an ablation is less than what we have
PEERS = ("peer",)
_BATCHES = (32, 64, 128, 256)  # "every batch size"


@dataclasses.dataclass(frozen=True)
class Goal:
    """A number to reach.

    Attributes:
        text: the goal in words.
        value: callable from the rows of a batch size to the number, or ``None`` if it was not measured.
        bound: what it is to be at least, or at most where that is 0.
        digits: of the number, as a format.
        batches: the batch sizes that are meant.
        names: of rows; a run without one of them says nothing about the goal.
    """

    text: str
    value: Callable
    bound: float
    digits: str
    batches: tuple[int, ...] = _BATCHES
    names: tuple[str, ...] = (config_rows.ALL,)


def best(rows, groups):
    """Returns the fastest row of some groups, the first of equal ones, or ``None`` if nothing of them was measured.

    Args:
        rows: of one batch size, see :mod:`benchmarks.bars.record`.
        groups: names of groups.
    """
    measured = [row for row in rows if row["group"] in groups and not row["reason"]]
    return max(measured, key=lambda row: row["median"], default=None)


def over_peers(rows):
    """Returns the images a second of our best row over those of the best peer, or ``None``."""
    own, peer = best(rows, OURS), best(rows, PEERS)
    return own["median"] / peer["median"] if own and peer else None


def over_all_peers(rows):
    """Returns the same, but ``None`` if a row of PyTorch has no number: it could be the fastest."""
    measured = {row["name"] for row in rows if not row["reason"]}
    return over_peers(rows) if measured.issuperset(pytorch_rows.NAMES_ON_GPU) else None


def of_best(key):
    """Returns a callable from the rows of a batch size to a number of our best row, or to ``None``."""

    def value(rows):
        own = best(rows, OURS)
        return own and own[key]

    return value


GOALS = (
    Goal("at least 8,000 images/s at batch 256", of_best("median"), 8000, ",.0f", (256,)),
    Goal("at least 5,500 images/s at batch 32", of_best("median"), 5500, ",.0f", (32,)),
    Goal(
        "at least 1.25 times the best PyTorch row at every batch size",
        over_all_peers,
        1.25,
        ".2f",
        names=(config_rows.ALL, *pytorch_rows.NAMES_ON_GPU),
    ),
    Goal(
        "at least 6 times plain Chainer FP32 with cuDNN at every batch size",
        of_best("ratio"),
        6,
        ".2f",
        names=(config_rows.ALL, chainer_rows.CUDNN),
    ),
    Goal("no host synchronization in a step, at every batch size", of_best("syncs"), 0, "g"),
)


def answer(goal, records):
    """Compares what was measured with a goal.

    Args:
        goal: :class:`Goal`.
        records: of runs, see :mod:`benchmarks.bars.record`. At each batch size the newest one counts that has
            ResNet-50 on an H200 and the rows that the goal needs, with all their blocks.

    Returns:
        ``(measured, gap)`` in words
    """
    own = [record for record in records if _is_h200(record)]
    if not own:
        return "not measured: no H200 was there", ""
    own = [record for record in own if _network(record) == ("resnet50", 224)]
    if not own:
        return "not measured: not with resnet50 and 224x224 pixels", ""
    own.sort(key=bars_record.when, reverse=True)
    values = {batch: goal.value(_rows(goal, own, batch)) for batch in goal.batches}
    texts = [
        f"{'not measured' if value is None else format(value, goal.digits)} at batch {batch}"
        for batch, value in values.items()
    ]
    return ", ".join(texts), _gap(goal, values)


def _rows(goal, records, batch):
    """The rows at a batch size of the first record that has all blocks and those rows that the goal needs."""
    for record in records:
        rows = [row for row in record["rows"] if row["batch"] == batch]
        is_cut = any(not row["reason"] and len(row["blocks"]) < record["settings"]["blocks"] for row in rows)
        if not is_cut and {row["name"] for row in rows}.issuperset(goal.names):
            return rows
    return []


def _is_h200(record):
    """Whether it is a whole one; a GH200 is another GPU."""
    return record["kind"] == "gpu" and bool(re.search(r"\bH200\b(?!.*\bMIG\b)", record["device"]))


def _network(record):
    return record["settings"]["arch"], record["settings"]["size"]


def _gap(goal, values):
    """The gap where it is largest; what was not measured leaves a goal open, or missed."""
    known = {batch: value for batch, value in values.items() if value is not None}
    if not known:
        return "open"
    worst = max(known, key=known.get) if goal.bound == 0 else min(known, key=known.get)
    where = f" at batch {worst}" if len(values) > 1 else ""
    if goal.bound == 0:
        if known[worst] > 0:
            return f"missed: {known[worst]:g} too many{where}"
        return "met" if len(known) == len(values) else "open"
    gap = known[worst] / goal.bound - 1
    if gap < 0:
        return f"missed: {-gap:.1%} below{where}"
    return f"met: {gap:.1%} above{where}" if len(known) == len(values) else "open"
