"""Trials: a few training steps in a process of their own, which is ended when it takes more memory than the budget."""

import contextlib
import dataclasses
import os
import pathlib
import re
import resource
import statistics
import threading
import time

import mixprec
from benchmarks import processes
from benchmarks.activations.ways import RECORDED, WAYS, Training
from mixprec.activation_memory.planning import DoesNotFit

_WATCHED = 0.005  # seconds between two looks at the memory
_LIMIT = 600.0  # seconds of a trial
_MALLOC = "MALLOC_MMAP_THRESHOLD_"  # bytes; larger arrays go back to the system when they are gone
_OWN_PAGES = str(1 << 20)
_SPARE, _ALWAYS_SPARE = 0.02, 16e6  # of the budget, and bytes: what a plan does not know of
_BEYOND = "more than the budget"


class TrialError(Exception):
    """A trial has failed, and not for lack of memory; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Steps of a way at a size.

    Attributes:
        way: its name.
        size: height and width of an image in pixels.
        reason: why it does not fit; ``""`` if it does.
        before: bytes of the process before the first step.
        peaks: bytes that the process has had at the most, after each step.
        seconds: of each step that is timed.
        plan: of :func:`mixprec.offload`, as text; ``""`` for none.
    """

    way: str
    size: int
    reason: str = ""
    before: int = 0
    peaks: tuple = ()
    seconds: tuple = ()
    plan: str = ""

    @property
    def peak(self):
        """The most memory that the process has had, in bytes."""
        return self.peaks[-1]

    @property
    def least(self):
        """Likewise before a plan has made use of the budget."""
        return self.peaks[RECORDED - 1] if WAYS[self.way].offload else self.peak

    @property
    def median(self):
        """Seconds of a step."""
        return statistics.median(self.seconds)


def run(way, setting, size):
    """Returns the :class:`Trial` of a way at a size, from a new process.

    Args:
        way: name of one of :data:`~benchmarks.activations.ways.WAYS`.
        setting: :class:`~benchmarks.activations.ways.Setting`.
        size: height and width of an image in pixels.

    Raises:
        TrialError: the process has failed, and not for lack of memory.
    """
    with giving_back(), processes.Worker() as worker:
        found, reason = worker.attempt(steps, way, setting, size, limit=_LIMIT)
        if found is not None:
            return found
        if worker.progress == _BEYOND or reason.startswith("MemoryError"):
            return Trial(way, size, _BEYOND)
    raise TrialError(f"{way}, {size}x{size} pixels: {reason}")


@contextlib.contextmanager
def giving_back():
    """Processes that begin in the block give free memory back to the system: it counts for none of them."""
    before = os.environ.get(_MALLOC)
    os.environ[_MALLOC] = _OWN_PAGES
    try:
        yield
    finally:
        del os.environ[_MALLOC]
        if before is not None:
            os.environ[_MALLOC] = before


def steps(name, setting, size):
    """Runs the steps of a trial in this process, which ends if they take more memory than the budget."""
    way = WAYS[name]
    training = Training(way, setting, size)
    _limit(setting.budget)
    before = memory("VmRSS")
    offload = None
    if way.offload:
        planned = max(1, int((1 - _SPARE) * setting.budget - _ALWAYS_SPARE))
        offload = mixprec.offload(planned, to=setting.folder, recompute=way.recompute)
    peaks, seconds = [], []
    try:
        for _ in range(way.warmup + setting.steps):
            seconds.append(training.step(offload))
            peaks.append(memory("VmHWM"))
    except DoesNotFit as error:
        return Trial(name, size, str(error))
    if peaks[-1] > setting.budget:
        return Trial(name, size, _BEYOND)
    plan = offload.report() if way.offload else ""
    return Trial(name, size, "", before, tuple(peaks), tuple(seconds[way.warmup :]), plan)


def memory(what):
    """Returns what the system says of the memory of this process, in bytes.

    Args:
        what: ``"VmRSS"`` for what it has, ``"VmHWM"`` for the most that it has had, ``"VmSize"`` for its addresses.
    """
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+) kB", status)[1]) * 1024


def _limit(budget):
    """Ends this process when it takes more memory, before the machine begins to swap."""
    limit = memory("VmSize") + 2 * budget
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    threading.Thread(target=_watch, args=(budget,), daemon=True).start()


def _watch(budget):
    while memory("VmHWM") <= budget:
        time.sleep(_WATCHED)
    processes.report(_BEYOND)
    os._exit(1)
