"""The state that all pages share: the runs, their logs, work in other processes, and jobs."""

import collections
import functools
import os
import threading

from mixprec.app.monitor import charts
from mixprec.app.monitor.log import GradientLog, Log
from mixprec.app.monitor.runs import Runs
from mixprec.app.monitor.task_runner import Tasks
from mixprec.recipes import config_names, config_path

_LOGS = 32  # number of logs that are held
_CONFIGS = 500  # runs whose configs are listed
_INTERVAL = 0.5  # seconds within which a file is not read twice


class Monitor:
    """The state of the server.

    Args:
        root: folder of results.
        jobs: :class:`mixprec.app.monitor.jobs.Jobs`, or ``None`` where pages may only look.

    Attributes:
        runs: :class:`mixprec.app.monitor.runs.Runs`.
        tasks: :class:`mixprec.app.monitor.task_runner.Tasks`.
    """

    def __init__(self, root, jobs=None):
        self.runs, self.jobs = Runs(root), jobs
        self.tasks = Tasks(root=self.runs.root)
        self._of_path = functools.lru_cache(_LOGS)(lambda kind, path: kind(path, self.runs.root))
        self._computed, self._lock = collections.OrderedDict(), threading.Lock()

    def configs(self, word, first=""):
        """Returns the configs that a page may name, of mixprec and of runs; no path comes from a browser.

        Args:
            word: prefix of the names of runs.
            first: name of a run that is always included.

        Returns:
            dict from displayed names to paths.
        """
        paths = {f"config {name}": config_path(name) for name in config_names()}
        for name in [first, *(row.name for row in self.runs.rows[:_CONFIGS])]:
            if (run := self.runs.get(name)) is not None:
                paths[f"{word} {name}"] = os.path.join(run.folder, "config.yaml")
        return paths

    def log(self, run):
        """Returns the :class:`mixprec.app.monitor.log.Log` of a run as it is now."""
        return self._read(Log, run, "log.jsonl")

    def gradients(self, run):
        """Returns the current :class:`mixprec.app.monitor.log.GradientLog` of a run."""
        return self._read(GradientLog, run, "gradients.jsonl")

    def _read(self, kind, run, name):
        path = os.path.join(run.folder, name)
        with self._lock:  # a path has one log
            log = self._of_path(kind, path)
        log.refresh(_INTERVAL)  # with a lock of its own: a slow disk does not hold up pages of other runs
        return log

    def row(self, run):
        """Returns the :class:`mixprec.app.monitor.run_folder.Row` of a run as it is now."""
        return run.row(_INTERVAL)

    def curves(self, run, axis):
        """Returns the charts of a run for its current log, computed once for all viewers.

        Args:
            run: :class:`mixprec.app.monitor.run_folder.Run`.
            axis: one of :data:`mixprec.app.monitor.charts.AXES`.

        Returns:
            tuple: the log, the version that it had then, and a dict from titles to options of charts.
        """
        log = self.log(run)

        def draw():
            return {title: charts.curve_chart(log, title, axis) for title in charts.CURVES}

        version, found = self._once((run.folder, axis), log, draw)
        return log, version, found

    def points(self, run, name, axis, base):
        """Returns the log of a run, its version, and its :func:`mixprec.app.monitor.charts.points`, in the same way."""
        log = self.log(run)
        return log, *self._once((run.folder, name, axis, base), log, lambda: charts.points(log, name, axis, base))

    def _once(self, key, log, compute):
        with log.lock:  # no other thread reads the log meanwhile
            version, found = self._computed.get(key, (None, None))
            if version != log.version:
                version, found = log.version, compute()
            with self._lock:
                self._computed.pop(key, None)
                self._computed[key] = version, found
                while len(self._computed) > _LOGS:
                    self._computed.popitem(last=False)
            return version, found
