"""Runs the stages one after the other within a budget, and keeps what is known of them up to date."""

import collections.abc
import dataclasses
import fnmatch
import pathlib
import shutil
import signal
import time

from benchmarks.gpu_check import group, stages, summary

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


@dataclasses.dataclass
class Check:
    """A run of stages, whatever becomes of each of them.

    Attributes:
        wanted: list of :class:`~benchmarks.gpu_check.stages.Stage`; ``device`` runs before them, in each check.
        end: when all is to be over by ``time.monotonic()``, the end of what hangs included.
        root: working directory of the commands.
        scratch: folder for the files of the stages; it exists.
        environment: dict of variables of the commands, beside those of this process.
        keep: :meth:`benchmarks.gpu_check.archive.Home.keep`, called after each change.
        signals: list from :func:`benchmarks.gpu_check.group.noting_signals`: after a signal no more is run.
        say: callable that prints a line.
        former: dict from names of stages to results of a check before this one; what went well there is not run.
        date: of this check.
        device: the stage that looks for a GPU.
        grace: seconds between SIGTERM and SIGKILL for a stage that is too long.
    """

    wanted: list
    end: float
    root: pathlib.Path
    scratch: pathlib.Path
    environment: dict
    keep: collections.abc.Callable
    signals: list
    say: collections.abc.Callable
    former: dict
    date: str
    device: stages.Stage = stages.DEVICE
    grace: float = group.GRACE

    def run(self):
        """Runs all stages; returns the list of :class:`~benchmarks.gpu_check.summary.Result`."""
        every, self._outputs = [self.device, *self.wanted], {}
        self._results = {
            stage.name: self.former.get(stage.name) or summary.Result(stage.name, list(stage.command), stage.limit)
            for stage in every
        }
        self._kept()
        for stage in every:
            result = self._results[stage.name]
            if result.state != summary.OK:  # in a check before
                seconds = min(stage.limit, self.end - time.monotonic() - self.grace - group.GONE)
                result.state, result.note = self._obstacle(stage, seconds) or (summary.RUNNING, "")
                if result.state == summary.RUNNING:
                    result.limit, result.date = round(seconds, 1), self.date
                    self._kept()
                    self.say(f"{stage.name}: at most {seconds:.0f} s ...")
                    self._run(stage, result)
                    self._kept()
            for line in result.lines(self.date):
                self.say(line)
        self._kept(complete=not self.signals)
        return list(self._results.values())

    def _kept(self, complete=False):
        self.keep(list(self._results.values()), self._outputs, complete)

    def _obstacle(self, stage, seconds):
        """``(state, note)`` of a stage that cannot run; ``None`` if it can."""
        if self.signals:
            return summary.SKIPPED, "interrupted before"
        if stage.needs_device:
            answer = self._results[self.device.name]
            if answer.state == summary.NO_DEVICE:
                return summary.NO_DEVICE, answer.note
            if answer.state != summary.OK:
                return summary.SKIPPED, f"whether there is a GPU is not known: {answer.name}: {answer.state}"
        if seconds < stage.seconds:
            return summary.NOT_BEGUN, f"{max(seconds, 0.0):.0f} s were left, {stage.seconds:.0f} are planned for it"
        return None

    def _run(self, stage, result):
        folder = self.scratch / stage.name
        try:
            shutil.rmtree(folder, ignore_errors=True)  # what a former try has left
            folder.mkdir()
            how = {"limit": result.limit, "signals": self.signals, "grace": self.grace}
            ended = group.run(stage.command, folder=self.root, environment=self.environment, **how)
        except OSError as error:
            result.state, result.note = summary.FAILED, f"cannot be started: {error}"
            return
        self._outputs[stage.name] = ended.output
        lines = [line for line in ended.output.decode(errors="replace").splitlines() if line.strip()]
        last, wrong = lines[-1] if lines else "no output", None
        result.seconds, result.status = round(ended.seconds, 1), ended.status
        try:
            result.quotes = list(map(summary.cut, stage.quote(folder, lines)))
        except (OSError, ValueError, LookupError, TypeError) as error:  # the files are not what they should be
            wrong, result.quotes = str(error), list(map(summary.cut, lines[-_LAST:]))
        if ended.interrupted:
            result.state, result.note = summary.INTERRUPTED, signal.Signals(self.signals[0]).name
        elif ended.timed_out:
            result.state, result.note = summary.TIMED_OUT, f"after {result.limit:g} s; last line: {last}"
        elif ended.status == stages.NO_GPU and stage is self.device:
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
    names = {-number: number.name for number in signal.Signals}
    return f"exit status {status}" if status >= 0 else f"ended by {names.get(status, -status)}"
