"""Who runs when: at each batch size every row lives in a process of its own, and blocks of steps alternate.

So a drift of the machine hits all rows alike. A process ends as soon as it fails. While one row runs, the others hold
their parameters and little else.
"""

import contextlib
import dataclasses
import time

from mixprec.benchmark.bars import contestant
from mixprec.benchmark.bars.contestant import Bar, Block, Ready
from mixprec.benchmark.processes import Worker

_BLOCK_SECONDS = 5.0  # a block has fewer steps, if it would take longer


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a way to train at one batch size.

    Attributes:
        bar: the way to train.
        ready: what is known of it when it is warm; ``None`` if it has failed before.
        blocks: what was measured; empty if it has failed.
        reason: why it has failed, or ``""``.
        note: what mixprec has announced in its process, and which row was measured in its place.
    """

    bar: Bar
    ready: Ready | None
    blocks: tuple[Block, ...]
    reason: str
    note: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long is measured.

    Attributes:
        blocks: number of timed blocks of each row.
        block_steps: number of timed steps in a block; fewer, if they would take more than five seconds.
        limit: seconds after which a row is given up that does not answer.
        minutes: after which no row and no block begins any more, but the first block; ``None`` for no such time.
        end: when that is, by ``time.monotonic()``.
    """

    blocks: int
    block_steps: int
    limit: float
    minutes: float | None = None
    end: float = float("inf")

    def is_over(self):
        """Whether the time is over."""
        return time.monotonic() > self.end


def measure(bars, task, plan, *, count=None, progress=lambda name: None):
    """Measures all rows at one batch size.

    Args:
        bars: list of :class:`~mixprec.benchmark.bars.contestant.Bar`.
        task: :class:`~mixprec.benchmark.bars.contestant.Task`.
        plan: :class:`Plan`.
        count: see :class:`~mixprec.benchmark.bars.contestant.Contestant`.
        progress: called with the name of a row when it is warm, and after each of its blocks.

    Returns:
        list of :class:`Result`
    """
    firsts = _firsts(bars)
    with contextlib.ExitStack() as stack:
        contenders = {}
        for bar in firsts.values():
            contenders[bar.name] = stack.enter_context(_Contender(bar, plan))
            contenders[bar.name].prepare(task, count)
            progress(bar.name)
        for number in range(1, plan.blocks + 1):
            if number > 1 and plan.is_over():
                break
            for contender in contenders.values():
                contender.block(f"block {number} of {plan.blocks}: ")
                progress(contender.bar.name)
        results = {name: contender.result() for name, contender in contenders.items()}
    found = []
    for bar in bars:
        first = firsts[_key(bar)]
        result = results[first.name]
        if first is not bar:
            note = "; ".join(filter(None, [f"the same step as {first.name}", result.note]))
            result = dataclasses.replace(result, bar=bar, note=note)
        found.append(result)
    return found


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


class _Contender:
    """A way to train at one batch size, from its warm-up to its last block or its first failure.

    Args:
        bar: the way to train.
        plan: :class:`Plan`.

    Attributes:
        bar: the way to train.
    """

    def __init__(self, bar, plan):
        self.bar, self._plan = bar, plan
        self._reason, self._notes, self._ready, self._blocks = bar.reason, [], None, []
        self._worker = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._worker is not None:
            self._worker.end()

    def prepare(self, task, count):
        """Starts the process, and makes a step that is warm, unless the time is over."""
        if not self._reason and self._plan.is_over():
            self._reason = f"not begun: {self._plan.minutes:g} minutes were over"
        if not self._reason:
            self._worker = Worker()
            self._ready = self._attempt("", contestant.prepare, self.bar, task, count)

    def block(self, where):
        """Measures one more block, unless it has failed.

        Args:
            where: what the reason begins with if this fails.
        """
        if not self._reason:
            steps = min(self._plan.block_steps, max(1, int(_BLOCK_SECONDS / self._ready.seconds)))
            self._blocks.append(self._attempt(where, contestant.block, steps))

    def result(self):
        """Returns the :class:`Result`."""
        if not self._reason:
            self._notes = self._attempt("", contestant.notes)
        if self._reason:
            return Result(self.bar, self._ready, (), self._reason, "")
        return Result(self.bar, self._ready, tuple(self._blocks), "", "; ".join(self._notes))

    def _attempt(self, where, function, *arguments):
        result, reason = self._worker.attempt(function, *arguments, limit=self._plan.limit)
        if reason:
            self._reason = f"{where}{reason}"
            self._worker.end()  # what it holds is free before another one runs
        return result
