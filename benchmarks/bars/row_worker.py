"""The warm training step of a row and its timed blocks, which ``row_schedule`` calls in the process of the row."""

import dataclasses
import logging
import statistics
import time
from collections.abc import Callable

from benchmarks import processes
from benchmarks.bars import progress

_BEFORE = 0.3  # seconds of steps before the clock starts: a GPU that was idle has to come up to its speed
_HOST_STEPS = 5  # in a block, whose calls are timed with nothing in the queue of the device


@dataclasses.dataclass(frozen=True)
class Task:
    """What all rows of a batch size train.

    Attributes:
        arch: name of the network, or of a task of :mod:`benchmarks.bars.sequences`.
        network: callable, at the top of a module, from the number of classes to a Chainer link from images
            (N, 3, size, size) to logits; ``None`` for sequences.
        specifier: of the device.
        batch: images or sequences in a batch.
        size: height and width of an image in pixels; ``None`` for sequences.
    """

    arch: str
    network: Callable | None
    specifier: str
    batch: int
    size: int | None


@dataclasses.dataclass(frozen=True)
class BenchmarkRow:
    """A row of the table: a way to train that is measured, or the reason why it cannot be measured here.

    Attributes:
        name: of the row.
        make: callable, at the top of a module or a partial of such a one, from a :class:`Task` to a
            :class:`~benchmarks.bars.timed_step.Step`.
        reason: one line that says why it cannot be measured here, or ``""``.
        group: ``"plain"``, ``"config"``, ``"precision"``, ``"ablation"`` or ``"peer"``.
        key: bars with equal keys do the same on this machine, and one is measured for all; ``None`` is like no other.
    """

    name: str
    make: Callable | None = None
    reason: str = ""
    group: str = "plain"
    key: object = None


@dataclasses.dataclass(frozen=True)
class Launches:
    """What the host asks of the device in a step.

    Attributes:
        launches: kernels and graphs.
        syncs: how often the host waits for the device.
    """

    launches: int
    syncs: int


@dataclasses.dataclass(frozen=True)
class Block:
    """What was measured in a block of steps.

    Attributes:
        seconds: of a step.
        host_seconds: until the call of a step returns, which does not wait for the device; ``None`` on a CPU.
        peak: bytes, see :meth:`benchmarks.bars.timed_step.Step.peak`.
        kept: bytes, see :class:`benchmarks.bars.timed_step.Step`.
    """

    seconds: float
    host_seconds: float | None
    peak: int
    kept: int | None = None


class WarmStep:
    """A training step that is warm.

    Between blocks it has given back what a step needs, so that the rows take turns in memory, too. What it takes to
    choose engines of cuDNN, before the first block, does not count as needed. A row that is alone keeps its memory and
    its graph, which is captured once, and its peak is that of all since its start.

    Args:
        bar: how to make the step.
        task: :class:`Task`.
        alone: whether no other row needs the device.

    Attributes:
        seconds: of one step, with nothing before it in the queue of the device.
        slower: why the last block ran eagerly though its steps are to be captured, or ``""``.
    """

    def __init__(self, bar, task, *, alone=False):
        self._on_cpu, self._alone, self.slower = task.specifier == "@numpy", alone, ""
        self._step = bar.make(task)
        self._step.warm_up()
        self.seconds = self._seconds(1)
        self._give_back()

    def block(self, steps):
        """Runs so many steps in a row, after some that are not timed; returns the :class:`Block`."""
        self._step.warm_up()
        for _ in range(int(_BEFORE / self.seconds)):
            self._step()
        seconds = self._seconds(steps)
        host_seconds = None if self._on_cpu else self._host_seconds()
        peak, self.slower = self._step.peak(), self._step.why_eager()
        self._give_back()
        return Block(seconds, host_seconds, peak, self._step.kept)

    def launches(self, count):
        """Runs a step that is counted; returns :class:`Launches`.

        Args:
            count: context manager that counts what the host asks of the device, and gives an object with ``launches``,
                ``graph_launches`` and ``syncs``.
        """
        self._step.warm_up()
        with count() as counts:
            self._step()
        self._give_back()
        return Launches(counts.launches + counts.graph_launches, counts.syncs)

    def _give_back(self):
        if not self._alone:
            self._step.release()

    def _seconds(self, steps):
        self._step.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self._step()
        self._step.synchronize()
        return (time.perf_counter() - start) / steps

    def _host_seconds(self):
        seconds = []
        for _ in range(_HOST_STEPS):
            start = time.perf_counter()
            self._step()
            seconds.append(time.perf_counter() - start)
            self._step.synchronize()
        return statistics.median(seconds)


class _Notes(logging.Handler):
    """Keeps what mixprec announces: slower paths that were taken."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage().partition("\n")[0])


_warm_step = []
_notes = _Notes()


def prepare(bar, task, alone):
    """Makes the :class:`WarmStep` of this process; returns the seconds that a step takes."""
    logging.getLogger("mixprec").addHandler(_notes)
    with progress.reporting(f"{bar.name}, batch {task.batch}", processes.report):
        _warm_step[:] = [WarmStep(bar, task, alone=alone)]
    return _warm_step[0].seconds


def block(steps):
    """Runs a block of it, see :meth:`WarmStep.block`."""
    return _warm_step[0].block(steps)


def launches(count):
    """Counts a step of it, see :meth:`WarmStep.launches`."""
    return _warm_step[0].launches(count)


def notes():
    """Returns what mixprec has announced in this process, and whether its step runs eagerly, as a list of lines."""
    slower = _warm_step[0].slower
    return [*_notes.texts, *([f"runs eagerly: {slower}"] if slower else [])]
