"""Images a second of training on synthetic data that lie on the device: a row for each way to train.

At each batch size every row lives in a process of its own, which ends as soon as it fails. Blocks of steps of the rows
alternate, so that a drift of the machine hits all of them alike; while one row runs, the others hold their parameters
and little else.
"""

import contextlib
import dataclasses
import statistics
from concurrent.futures.process import BrokenProcessPool

from mixprec import environment
from mixprec.benchmark import machine
from mixprec.benchmark.bars import contestant as bars_contestant
from mixprec.benchmark.processes import process, run_in

_DIED = "its process died: a crash, or the memory of the machine was not enough"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: a way to train at one batch size; ``None`` is what was not measured.

    Attributes:
        batch: images in a batch.
        name: of the way to train.
        blocks: images a second in each block.
        median: of them.
        minimum: of them.
        maximum: of them.
        milliseconds: median time of a step.
        ratio: median of its images a second over those of the first row in the same turn.
        peak: most bytes that CuPy's pool has needed for a step, see
            :class:`~mixprec.benchmark.bars.contestant.Block`.
        reason: one line that says why there are no numbers, or ``""``.
    """

    batch: int
    name: str
    blocks: tuple[float, ...] | None = None
    median: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    milliseconds: float | None = None
    ratio: float | None = None
    peak: int | None = None
    reason: str = ""


def defaults(specifier):
    """Returns what is measured on a device unless somebody asks for something else.

    Args:
        specifier: of the device.

    Returns:
        dict of ``arch``, ``batch`` (a list of batch sizes) and ``size`` (pixels)
    """
    if specifier == "@numpy":
        return {"arch": "resnet18", "batch": [8], "size": 64}
    return {"arch": "resnet50", "batch": [32, 64, 128, 256], "size": 224}


def measure(network, bars, specifier, *, batches, size, blocks=5, block_steps=10):
    """Measures all rows, one batch size after the other.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images
            (N, 3, size, size) to logits.
        bars: list of :class:`~mixprec.benchmark.bars.contestant.Bar`; ratios are over the first of them.
        specifier: of the device.
        batches: numbers of images in a batch.
        size: height and width of an image in pixels.
        blocks: number of timed blocks of each row.
        block_steps: number of timed steps in a block.

    Returns:
        list of :class:`Row`; what has failed is a row with its reason.
    """
    rows = []
    for batch in batches:
        with contextlib.ExitStack() as stack:
            contenders = [stack.enter_context(_Contender(bar, network, specifier, batch, size)) for bar in bars]
            for number in range(1, blocks + 1):
                for contender in contenders:
                    contender.block(block_steps, f"block {number} of {blocks}: ")
        base = contenders[0].blocks
        rows += [
            row_of(batch, contender.bar.name, contender.blocks, base, contender.reason) for contender in contenders
        ]
    return rows


def row_of(batch, name, blocks, base, reason):
    """Returns the row of a way to train.

    Args:
        batch: images in a batch.
        name: of the way to train.
        blocks: list of :class:`~mixprec.benchmark.bars.contestant.Block`.
        base: likewise, of what it is compared with in the same turns; empty if that failed.
        reason: why it has failed, or ``""``.
    """
    if reason:
        return Row(batch, name, reason=reason)
    rates = tuple(batch / block.seconds for block in blocks)
    ratio = statistics.median(b.seconds / own.seconds for own, b in zip(blocks, base, strict=True)) if base else None
    peaks = [block.peak for block in blocks if block.peak is not None]
    milliseconds = statistics.median(block.seconds for block in blocks) * 1e3
    return Row(
        *(batch, name, rates, statistics.median(rates), min(rates), max(rates)),
        *(milliseconds, ratio, max(peaks, default=None)),
    )


# Title, width, and what stands in the line of a row that was measured.
_COLUMNS = (
    ("images/s", 10, lambda row: f"{row.median:.1f}"),
    ("min-max", 17, lambda row: f"{row.minimum:.1f}-{row.maximum:.1f}"),
    ("ms a step", 11, lambda row: f"{row.milliseconds:.1f}"),
    ("ratio", 8, lambda row: "" if row.ratio is None else f"{row.ratio:.2f}"),
    ("peak MB", 9, lambda row: "" if row.peak is None else f"{row.peak / 1e6:.0f}"),
)


def table(rows):
    """Returns the rows as an aligned text table."""
    lines, width = [], max(len(row.name) for row in rows) + 2
    for batch in dict.fromkeys(row.batch for row in rows):
        titles = "".join(f"{title:>{wide}}" for title, wide, _ in _COLUMNS)
        lines.append(f"{f'batch {batch}':{width + 2}}{titles}")
        lines += [_line(row, width) for row in rows if row.batch == batch]
    return "\n".join(lines)


def as_json(rows, device, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on.

    Args:
        rows: list of :class:`Row`.
        device: what they were measured on, in words.
        **settings: of the run.
    """
    versions = {component.name: component.version for component in environment.components() if component.version}
    own = [dataclasses.asdict(row) for row in rows]
    return {"settings": settings, **machine.record(), "device": device, "versions": versions, "rows": own}


def _line(row, width):
    if row.reason:
        return f"  {row.name:{width}}{row.reason}"
    return f"  {row.name:{width}}{''.join(f'{text(row):>{wide}}' for _, wide, text in _COLUMNS)}".rstrip()


class _Contender:
    """A way to train at one batch size, from its warm-up to its last block or its first failure.

    Args:
        bar: the way to train.
        *arguments: of :class:`~mixprec.benchmark.bars.contestant.Contestant`, without ``bar``.

    Attributes:
        bar: the way to train.
        blocks: list of what was measured; empty if it has failed.
        reason: why it has failed, or ``""``.
    """

    def __init__(self, bar, *arguments):
        self.bar, self.blocks, self.reason = bar, [], bar.reason
        self._arguments = arguments
        self._processes = contextlib.ExitStack()

    def __enter__(self):
        if not self.reason:
            self._process = self._processes.enter_context(process())
            self._attempt("", bars_contestant.prepare, self.bar, *self._arguments)
        return self

    def __exit__(self, *error):
        self._processes.close()

    def block(self, steps, where):
        """Measures one more block, unless it has failed.

        Args:
            steps: number of steps.
            where: what the reason begins with if this fails.
        """
        if not self.reason:
            block = self._attempt(where, bars_contestant.block, steps)
            self.blocks += [] if self.reason else [block]

    def _attempt(self, where, task, *arguments):
        try:
            result, reason = run_in(self._process, bars_contestant.attempt, task, *arguments)
        except BrokenProcessPool:
            result, reason = None, _DIED
        if reason:
            self.reason = f"{where}{reason}"
            self.blocks = []
            self._processes.close()  # what it holds is free before another one runs
        return result
