"""What all pages share: the runs, their logs, work in other processes, and jobs."""

import collections
import json
import math
import os
import threading
import time

from mixprec.monitor import charts
from mixprec.monitor.log import Log
from mixprec.monitor.runs import Runs
from mixprec.monitor.task_runner import Tasks

_LOGS = 16  # that are held as columns


class Monitor:
    """The state of the server.

    Args:
        root: folder of results.
        jobs: :class:`mixprec.monitor.jobs.Jobs`, or ``None`` where pages may only look.

    Attributes:
        runs: :class:`mixprec.monitor.runs.Runs`.
        tasks: :class:`mixprec.monitor.task_runner.Tasks`.
    """

    def __init__(self, root, jobs=None):
        self.runs, self.tasks, self.jobs = Runs(root), Tasks(), jobs
        self._logs, self._lock = collections.OrderedDict(), threading.Lock()
        self._charts = {}

    def log(self, run, interval=0.5):
        """Returns the :class:`mixprec.monitor.log.Log` of a run as it is now.

        Args:
            run: :class:`mixprec.monitor.runs.Run`.
            interval: seconds within which the file is not looked at twice, whoever asks.
        """
        with self._lock:
            log, looked = self._logs.pop(run.folder, (None, -math.inf))
            log = log or Log(os.path.join(run.folder, "log.jsonl"))
            if time.monotonic() - looked >= interval:
                log.refresh()
                looked = time.monotonic()
            self._logs[run.folder] = log, looked
            while len(self._logs) > _LOGS:
                self._logs.popitem(last=False)
            return log

    def curves(self, run, axis):
        """Returns the charts of a run as its log is now, computed once for all who look.

        Args:
            run: :class:`mixprec.monitor.runs.Run`.
            axis: one of :data:`mixprec.monitor.charts.AXES`.

        Returns:
            tuple: the log, and a dict from titles to options of charts.
        """
        log = self.log(run)
        with self._lock:
            version, found = self._charts.get((run.folder, axis), (None, None))
            if version != log.version:
                found = {title: charts.curve_chart(log, title, axis) for title in charts.CURVES}
                self._charts[run.folder, axis] = log.version, found
                while len(self._charts) > _LOGS:
                    del self._charts[next(iter(self._charts))]
            return log, found


def gradient_entries(run):
    """Returns the entries of ``gradients.jsonl`` of a run, a list of dicts; what is none is left out."""
    entries = []
    for line in (run.text("gradients.jsonl") or "").splitlines():
        try:
            entry = json.loads(line)
            counts = [int(count) for count in entry["binades"]]
            entries.append(
                {
                    "iteration": int(entry["iteration"]),
                    "loss_scale": float(entry["loss_scale"]),
                    "lowest": int(entry["lowest"]),
                    "binades": counts[:300],
                }
            )
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            continue
    return entries
