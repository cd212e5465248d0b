"""Runs the stages one after the other within a budget, and keeps what is known of them up to date."""

import fnmatch
import shutil
import signal
import time

from benchmarks.gpu_check import group, stages, summary
from benchmarks.gpu_check.group import GRACE

_LAST = 6  # lines of a stage that has left no results


def chosen(every, patterns, former=()):
    """Returns the stages whose names match a pattern, in order; without a pattern all but those that are to be named.

    Those whose results are to be kept, by their names in ``former``, are returned, too.

    Raises:
        ValueError: a pattern matches no name.
    """
    names = [stage.name for stage in every]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"found {pattern!r}, expected one of {', '.join(names)}")
    wanted = {stage.name for stage in every if not patterns and not stage.on_request}.union(former)
    wanted.update(name for pattern in patterns for name in fnmatch.filter(names, pattern))
    return [stage for stage in every if stage.name in wanted]


class Check:
    """A run of stages, whatever becomes of each of them.

    Args:
        wanted: list of :class:`~benchmarks.gpu_check.stages.Stage`. If one of them that is to run needs a GPU,
            :data:`~benchmarks.gpu_check.stages.DEVICE` runs first, in each check.
        end: when all is to be over by ``time.monotonic()``, the end of what hangs included.
        root: working directory of the commands.
        scratch: folder for the files of the stages, a path; it exists.
        environment: dict of variables of the commands, beside those of this process.
        keep: :meth:`benchmarks.gpu_check.archive.Home.keep`, called after each change.
        interruption: :class:`~benchmarks.gpu_check.group.Interruption`: after a signal no more is run.
        say: callable that prints a line.
        former: dict from names of stages to results of a check before this one; what went well there is not run.
        date: of this check.
        device: the stage in the place of ``DEVICE``.
        grace: seconds between SIGTERM and SIGKILL for a stage that is too long.
    """

    def __init__(
        self,
        wanted,
        end,
        *,
        root,
        scratch,
        environment,
        keep,
        interruption,
        say,
        former,
        date,
        device=None,
        grace=GRACE,
    ):
        self._end, self._grace = end, grace
        self._device = device = device or stages.DEVICE
        asks = any(stage.needs_device and stage.name not in former for stage in wanted)
        self._stages = [device] * asks + list(wanted)
        self._root, self._scratch, self._environment = root, scratch, environment
        self._keep, self._interruption, self._say, self._date = keep, interruption, say, date
        self._outputs = {}
        self._results = {
            stage.name: former.get(stage.name) or summary.Result(stage.name, list(stage.command), stage.limit)
            for stage in self._stages
        }

    def run(self):
        """Runs all stages; returns the list of :class:`~benchmarks.gpu_check.summary.Result`."""
        self._kept()
        for stage in self._stages:
            result = self._results[stage.name]
            if result.state != summary.OK:  # in a check before
                seconds = min(stage.limit, self._end - time.monotonic() - self._grace - group.GONE)
                result.state, result.note = self._obstacle(stage, seconds) or (summary.RUNNING, "")
                if result.state == summary.RUNNING:
                    result.limit, result.date = round(seconds, 1), self._date
                    self._kept()
                    self._say(f"{stage.name}: at most {seconds:.0f} s ...")
                    self._run(stage, result)
                    self._kept()
            for line in result.lines(self._date):
                self._say(line)
        self._kept(complete=not self._interruption.signals)
        return list(self._results.values())

    def _kept(self, complete=False):
        self._keep(list(self._results.values()), self._outputs, complete)

    def _obstacle(self, stage, seconds):
        """``(state, note)`` of a stage that cannot run; ``None`` if it can."""
        if self._interruption.signals:
            return summary.SKIPPED, "interrupted before"
        if stage.needs_device:
            answer = self._results[self._device.name]
            if answer.state == summary.NO_DEVICE:
                return summary.NO_DEVICE, answer.note
            if answer.state != summary.OK:
                return summary.SKIPPED, f"whether there is a GPU is not known: {answer.name}: {answer.state}"
        if seconds < stage.seconds:
            return summary.NOT_BEGUN, f"{max(seconds, 0.0):.0f} s were left, {stage.seconds:.0f} are planned for it"
        return None

    def _run(self, stage, result):
        output = self._outputs[stage.name] = group.Output()
        folder = self._scratch / stage.name
        try:
            shutil.rmtree(folder, ignore_errors=True)  # what a former try has left
            folder.mkdir()
            ended = group.run(
                stage.command,
                output,
                folder=self._root,
                limit=result.limit,
                interruption=self._interruption,
                environment=self._environment,
                grace=self._grace,
            )
        except OSError as error:
            result.state, result.note = summary.FAILED, f"cannot be started: {error}"
            return
        result.seconds, result.status, wrong = round(ended.seconds, 1), ended.status, None
        lines = output.lines()
        last = lines[-1] if lines else "no output"
        try:
            result.quotes = list(map(summary.cut, stage.quote(folder, lines)))
        except (OSError, ValueError, LookupError, TypeError) as error:  # the files are not what they should be
            wrong, result.quotes = str(error), list(map(summary.cut, lines[-_LAST:]))
        if ended.interrupted:
            result.state, result.note = summary.INTERRUPTED, signal.Signals(self._interruption.signals[0]).name
        elif ended.timed_out:
            result.state, result.note = summary.TIMED_OUT, f"after {result.limit:g} s; last line: {last}"
        elif ended.status == stages.NO_GPU and stage is self._device:
            result.state, result.note, result.quotes = summary.NO_DEVICE, last, []
        elif ended.status != 0:
            result.state, result.note = summary.FAILED, f"{_in_words(ended.status)}; {last}"
        elif wrong is not None:
            result.state, result.note = summary.FAILED, f"ended well, but: {wrong}"
        else:
            result.state = summary.OK
        result.note = summary.cut(result.note)
        if ended.status is None:
            result.note += "; it does not even end by SIGKILL"


def _in_words(status):
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"ended by signal {-status}"
