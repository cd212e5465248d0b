"""Runs the stages one after the other within a budget, and keeps what is known of them up to date."""

import fnmatch
import json
import signal
import time

from benchmarks.gpu_check import group, quotes, stage_summary

_LAST = 6  # lines of a stage that has left no results
_ERRORS = (OSError, ValueError, LookupError, TypeError)  # of files that are not what a stage should have made


def chosen(stages, patterns, former=()):
    """Returns the stages whose names match a pattern, in order; all if there is none.

    Args:
        stages: list of :class:`~benchmarks.gpu_check.stages.Stage`.
        patterns: list of them, as in a shell.
        former: names of those whose results are to be kept; they are returned too.

    Raises:
        ValueError: a pattern matches no name.
    """
    names = [stage.name for stage in stages]
    wanted = set(former) if patterns else set(names)
    for pattern in patterns:
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ValueError(f"found {pattern!r}, expected one of {', '.join(names)}")
        wanted.update(matching)
    return [stage for stage in stages if stage.name in wanted]


class Check:
    """A run of stages, whatever becomes of each of them.

    Args:
        stages: list of :class:`~benchmarks.gpu_check.stages.Stage`.
        asking: the one that finds out whether there is a GPU; it runs first, if a stage needs one.
        end: when all is to be over by ``time.monotonic()``, the end of what hangs included.
        root: working directory of the commands.
        scratch: folder for the files of the stages, a path; it exists.
        environment: dict of variables of the commands, beside those of this process.
        keep: called after each change with the list of :class:`~benchmarks.gpu_check.stage_summary.Result`, a dict from
            names of stages to :class:`~benchmarks.gpu_check.group.Output`, and whether it is complete.
        interruption: :class:`~benchmarks.gpu_check.group.Interruption`: after a signal no more is run.
        say: callable that prints a line.
        former: dict from names of stages to results of a check before this one; what went well there is not run. The
            device is asked for in each check.
        date: of this check.
        grace: seconds between SIGTERM and SIGKILL for a stage that is too long.
    """

    def __init__(
        self, stages, asking, end, *, root, scratch, environment, keep, interruption, say, former, date, grace=None
    ):
        self._end = end
        needed = any(stage.needs_device and stage.name not in former for stage in stages)
        self._stages, self._asking = ([asking] if needed else []) + list(stages), asking
        self._root, self._scratch, self._environment = root, scratch, environment
        self._keep, self._interruption, self._say, self._date = keep, interruption, say, date
        self._grace = group.GRACE if grace is None else grace
        self._together = {}  # seconds that were taken
        self._outputs = {}
        self._results = {
            stage.name: (stage is not asking and former.get(stage.name))
            or stage_summary.Result(stage.name, list(stage.command), stage.limit)
            for stage in self._stages
        }

    def run(self):
        """Runs all stages; returns the list of :class:`~benchmarks.gpu_check.stage_summary.Result`."""
        self._kept()
        for stage in self._stages:
            result = self._results[stage.name]
            if result.state == stage_summary.OK:
                self._say(f"{stage.name}: ok, in the check of {result.date}")
                continue
            seconds = self._left(stage)
            obstacle = self._obstacle(stage, seconds)
            if obstacle is not None:
                result.state, result.note = obstacle
            else:
                result.state, result.limit, result.date = stage_summary.RUNNING, round(seconds, 1), self._date
                self._kept()
                self._say(f"{stage.name}: at most {seconds:.0f} s ...")
                self._run(stage, result)
                if stage is self._asking:
                    self._take_answer(result, self._outputs[stage.name].lines())
            self._kept()
            self._report(result)
        self._kept(complete=not self._interruption.signals)
        return list(self._results.values())

    def _kept(self, complete=False):
        self._keep(list(self._results.values()), self._outputs, complete)

    def _left(self, stage):
        """Seconds that a stage may take; after them it takes some more until nothing of it is left."""
        seconds = min(stage.limit, self._end - time.monotonic() - self._grace - group.GONE)
        if stage.together is not None:
            name, limit = stage.together
            seconds = min(seconds, limit - self._together.get(name, 0.0))
        return seconds

    def _obstacle(self, stage, seconds):
        """``(state, note)`` of a stage that cannot run; ``None`` if it can."""
        if self._interruption.signals:
            return stage_summary.SKIPPED, "interrupted before"
        answer = self._results.get(self._asking.name)
        if stage.needs_device and answer.state == stage_summary.NO_DEVICE:
            return stage_summary.NO_DEVICE, answer.note
        if stage.needs_device and answer.state != stage_summary.OK:
            return stage_summary.SKIPPED, f"whether there is a device is not known: {self._asking.name}: {answer.state}"
        least = max(stage.least, 1e-3)
        if seconds < least:
            return stage_summary.NOT_BEGUN, f"{max(seconds, 0.0):.0f} s were left, it needs at least {least:.0f}"
        return None

    def _run(self, stage, result):
        output = self._outputs[stage.name] = group.Output()
        result.log = f"{stage.name}.log"
        folder = self._scratch / stage.name
        try:
            folder.mkdir(exist_ok=True)
            ended = group.run(
                stage.command,
                output,
                folder=self._root,
                limit=result.limit,
                interruption=self._interruption,
                environment=self._environment,
                stop=stage.stop,
                grace=self._grace,
            )
        except OSError as error:
            result.state, result.note = stage_summary.FAILED, f"cannot be started: {error}"
            return
        result.seconds, result.status = round(ended.seconds, 1), ended.status
        if stage.together is not None:
            self._together[stage.together[0]] = self._together.get(stage.together[0], 0.0) + ended.seconds
        quote_error = None
        try:
            result.quotes = stage.quote(folder, output.lines())
        except _ERRORS as error:
            quote_error = f"{type(error).__name__}: {error}"
            result.quotes = [quotes.cut(line) for line in output.lines()[-_LAST:]]
        last = quotes.cut((output.lines() or ["no output"])[-1])
        if ended.interrupted:
            result.state, result.note = stage_summary.INTERRUPTED, signal.Signals(self._interruption.signals[0]).name
        elif ended.timed_out:
            result.state, result.note = stage_summary.TIMED_OUT, f"after {result.limit:g} s; last line: {last}"
        elif ended.status != 0:
            result.state, result.note = stage_summary.FAILED, f"{_in_words(ended.status)}; last line: {last}"
        elif quote_error is not None:
            result.state, result.note = stage_summary.FAILED, f"ended well, but: {quote_error}"
        else:
            result.state = stage_summary.OK
        if ended.status is None:
            result.note += "; it does not even end by SIGKILL"

    def _take_answer(self, result, lines):
        """Makes what the asking stage has found its state."""
        if result.state != stage_summary.OK:
            return
        try:
            answer = json.loads(lines[-1])
            result.state = stage_summary.NO_DEVICE if answer["device"] is None else stage_summary.OK
            result.note = answer["reason"]
        except _ERRORS as error:
            result.state, result.note = stage_summary.FAILED, f"ended well, but: {type(error).__name__}: {error}"

    def _report(self, result):
        seconds = "" if result.seconds is None else f", {result.seconds:.1f} s"
        self._say(f"{result.name}: {result.state}{seconds}{f': {result.note}' if result.note else ''}")
        for line in result.quotes:
            self._say(f"    {line}")


def _in_words(status):
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"ended by signal {-status}"
