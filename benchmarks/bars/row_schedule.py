"""The order of measuring: at each batch size every row has a process of its own, and blocks of steps alternate.

So a drift of the machine hits all rows alike. A process ends as soon as it fails. While one row runs, the others hold
their parameters and little else. A row that is alone holds all that it has, so that its graph is captured once.
"""

import contextlib
import dataclasses
import math
import time

from benchmarks.bars import row_worker
from benchmarks.bars.row_worker import BenchmarkRow, Block, Launches
from benchmarks.processes import Worker

_LEAST, _MOST = 1.0, 5.0  # seconds of a block
_MOST_STEPS = 1000
NOT_YET = "not measured yet"
SAME = "the same step as"  # begins the note of a row for which another row was measured


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a way to train at one batch size.

    Attributes:
        bar: the way to train.
        blocks: what was measured; empty if it has failed.
        launches: what the host asks of the device in a step; ``None`` if that was not counted.
        reason: why it has failed, or ``""``.
        note: what mixprec has announced in its process, and which row was measured in its place.
        is_cut: whether there would be more blocks if there had been more time.
    """

    bar: BenchmarkRow
    blocks: tuple[Block, ...]
    launches: Launches | None
    reason: str
    note: str
    is_cut: bool


@dataclasses.dataclass(frozen=True)
class Timing:
    """How long is measured.

    Attributes:
        blocks: number of timed blocks of each row.
        block_steps: number of timed steps in a block; more if they take less than a second, fewer if they would take
            more than five.
        limit: seconds after which a row is given up if its block does not answer.
        prepare_limit: the same limit until the row is warm: imports, kernels that are compiled, plans of cuDNN,
            engines that are measured; ``None`` for ``limit``.
        minutes: time after which no row and no block begins, except the first block; ``None`` for no limit.
        end: when that is, by ``time.monotonic()``.
    """

    blocks: int
    block_steps: int
    limit: float
    minutes: float | None = None
    end: float = math.inf
    prepare_limit: float | None = None

    def is_over(self):
        """Whether the time is over."""
        return time.monotonic() > self.end

    def steps(self, seconds):
        """Returns the number of steps in a block of steps that take so many seconds."""
        wanted = max(self.block_steps, min(_MOST_STEPS, math.ceil(_LEAST / seconds)))
        return min(wanted, max(1, int(_MOST / seconds)))


def measure(bars, task, timing, *, count=None, progress=lambda name: None):
    """Measures all rows at one batch size.

    Args:
        bars: list of :class:`~benchmarks.bars.row_worker.BenchmarkRow`.
        task: :class:`~benchmarks.bars.row_worker.Task`.
        timing: :class:`Timing`.
        count: see :meth:`benchmarks.bars.row_worker.WarmStep.launches`; ``None`` if nothing can count.
        progress: called with the name of a row when it is warm, and after each of its blocks.

    Yields:
        list: of :class:`Result`, after each round of blocks and in the end.
    """
    firsts = _firsts(bars)
    alone = sum(not bar.reason for bar in firsts.values()) == 1
    with contextlib.ExitStack() as stack:
        processes = {}
        for key, bar in firsts.items():
            processes[key] = stack.enter_context(_RowProcess(bar, timing))
            processes[key].prepare(task, alone=alone)
            progress(bar.name)
        for number in range(1, timing.blocks + 1):
            if number > 1 and timing.is_over():
                break
            for process in processes.values():
                process.block(f"block {number} of {timing.blocks}: ")
                progress(process.bar.name)
            yield _results(bars, firsts, processes)
        for process in processes.values():
            process.finish(count)
        yield _results(bars, firsts, processes)


def calls(bars, blocks):
    """Returns how often :func:`measure` calls ``progress``, unless its time is over before."""
    return len(_firsts(bars)) * (1 + blocks)


def _firsts(bars):
    """Returns of those bars that do the same the first, by what they do."""
    firsts = {}
    for bar in bars:
        firsts.setdefault(_key(bar), bar)
    return firsts


def _key(bar):
    return bar.name if bar.key is None else bar.key


def _results(bars, firsts, processes):
    found = []
    for bar in bars:
        result, first = processes[_key(bar)].result(), firsts[_key(bar)]
        if first is not bar:
            note = "; ".join(filter(None, [f"{SAME} {first.name}", result.note]))
            result = dataclasses.replace(result, bar=bar, note=note)
        found.append(result)
    return found


class _RowProcess:
    """A way to train at one batch size, from its warm-up to its last block or its first failure.

    Args:
        bar: the way to train.
        timing: :class:`Timing`.

    Attributes:
        bar: the way to train.
    """

    def __init__(self, bar, timing):
        self.bar, self._timing = bar, timing
        self._reason, self._notes, self._blocks, self._launches = bar.reason, [], [], None
        self._is_cut = False
        self._worker = None

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        if self._worker is not None:
            self._worker.__exit__(kind, *error)

    def prepare(self, task, *, alone):
        """Starts the process, and makes a step that is warm, unless the time is over."""
        if not self._reason and self._timing.is_over():
            self._reason, self._is_cut = f"not begun: {self._timing.minutes:g} minutes were over", True
        if not self._reason:
            self._worker = Worker()
            limit = self._timing.limit if self._timing.prepare_limit is None else self._timing.prepare_limit
            self._seconds = self._attempt("", limit, row_worker.prepare, self.bar, task, alone)

    def block(self, where):
        """Measures one more block, unless it has failed.

        Args:
            where: what the reason begins with if this fails.
        """
        if not self._reason:
            block = self._attempt(where, self._timing.limit, row_worker.block, self._timing.steps(self._seconds))
            self._blocks += [] if self._reason else [block]

    def finish(self, count):
        """Asks for what is said and counted after the last block; what fails here leaves the blocks as they are."""
        if self._reason:
            return
        self._is_cut = len(self._blocks) < self._timing.blocks
        self._notes, reason = self._worker.attempt(row_worker.notes, limit=self._timing.limit)
        if count is not None and not reason:
            self._launches, reason = self._worker.attempt(row_worker.launches, count, limit=self._timing.limit)
        self._notes = [*(self._notes or []), *([f"launches were not counted: {reason}"] if reason else [])]
        self._worker.end()

    def result(self):
        """Returns the :class:`Result` so far."""
        reason = self._reason or ("" if self._blocks else NOT_YET)
        blocks = () if reason else tuple(self._blocks)
        return Result(self.bar, blocks, self._launches, reason, "; ".join(self._notes), self._is_cut)

    def _attempt(self, where, limit, function, *arguments):
        result, reason = self._worker.attempt(function, *arguments, limit=limit)
        if reason:
            self._reason = f"{where}{reason}"
            self._worker.end()  # what it holds is free before another one runs
        return result
