"""The rows of the table: statistics of what the processes have measured."""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: a way to train at one batch size; ``None`` is what was not measured.

    Attributes:
        batch: images or sequences in a batch.
        name: of the way to train.
        group: see :class:`~benchmarks.bars.row_worker.BenchmarkRow`.
        blocks: images, words or frames a second in each block.
        median: of them.
        minimum: of them.
        maximum: of them.
        milliseconds: median time of a step.
        host_milliseconds: median time until the call of a step returns; on a GPU only.
        ratio: median of these rates over the rates of the base row in the same turn.
        launches: kernels and graphs that the host launches in a step.
        syncs: how often the host waits for the device in a step.
        peak: most bytes that a step has needed, see :meth:`benchmarks.bars.timed_step.Step.peak`.
        kept: bytes that a step keeps for its backward pass.
        reason: one line that says why there are no numbers, or ``""``.
        note: what else is to be said: slower paths that were taken.
    """

    batch: int
    name: str
    group: str
    blocks: tuple[float, ...] | None = None
    median: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    milliseconds: float | None = None
    host_milliseconds: float | None = None
    ratio: float | None = None
    launches: int | None = None
    syncs: int | None = None
    peak: int | None = None
    kept: int | None = None
    reason: str = ""
    note: str = ""


def row_of(batch, result, base, items=None):
    """Returns the row of a way to train.

    Args:
        batch: images or sequences in a batch.
        result: :class:`~benchmarks.bars.row_schedule.Result`.
        base: list of :class:`~benchmarks.bars.row_worker.Block` of what it is compared with, in the same turns;
            empty if there is none.
        items: words or frames in a batch; ``None`` for images.
    """
    bar, blocks = result.bar, result.blocks
    if result.reason:
        return Row(batch, bar.name, bar.group, reason=result.reason, note=result.note)
    rates = tuple((items or batch) / block.seconds for block in blocks)
    speeds = rates, statistics.median(rates), min(rates), max(rates)
    host_seconds = [block.host_seconds for block in blocks if block.host_seconds is not None]
    times = {"milliseconds": statistics.median(block.seconds for block in blocks) * 1e3}
    times["host_milliseconds"] = statistics.median(host_seconds) * 1e3 if host_seconds else None
    pairs = zip(blocks, base, strict=True) if base else ()
    times["ratio"] = statistics.median(other.seconds / own.seconds for own, other in pairs) if base else None
    counts = {} if result.launches is None else dataclasses.asdict(result.launches)
    peak, kept = max(block.peak for block in blocks), blocks[-1].kept
    return Row(batch, bar.name, bar.group, *speeds, **times, **counts, peak=peak, kept=kept, note=result.note)
