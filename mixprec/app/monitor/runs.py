"""The runs below a folder of results, found by listing it. No name comes from a browser."""

import math
import os
import threading
import time

from mixprec.app.monitor.log import PIECE, is_gone
from mixprec.app.monitor.run_folder import Row, Run
from mixprec.base import files
from mixprec.base.messages import printable

_DEPTH = 4  # folders below the root
_MARKS = ("config.yaml", "log.jsonl", "status.json")  # one of them makes a folder a run
_REST = 10  # pause after a listing, in units of its duration, to relieve slow disks
_LONGEST_REST = 20  # seconds
_ROUND = 4 * PIECE  # bytes of all logs that a listing reads; the next one continues with the others


class Runs:
    """All runs below a folder.

    Args:
        root: path of the folder.
    """

    def __init__(self, root):
        self.root = os.path.realpath(root)
        self.rows = []
        self._runs, self._lock, self._looked, self._rest = {}, threading.Lock(), -math.inf, 0.0
        self._turn = 0  # index of the run whose log is read first

    def get(self, name):
        """Returns the :class:`Run` that was listed under a name; ``None`` if none was."""
        return self._runs.get(name)

    def refresh(self, interval=0.0):
        """Lists the folder again, if that was not done within the last ``interval`` seconds. May be called by threads.

        Returns:
            list of :class:`Row`, the run that changed last first.
        """
        with self._lock:
            if time.monotonic() - self._looked >= max(interval, self._rest if interval else 0):
                begin = time.monotonic()
                runs = self._listed()
                self._read(list(runs.values()))
                rows = sorted(map(_row, runs.values()), key=lambda row: (-row.changed, row.name))
                self._runs, self.rows, self._looked = runs, rows, time.monotonic()
                self._rest = min(_REST * (self._looked - begin), _LONGEST_REST)
            return self.rows

    def _listed(self):
        found, unknown = {}, []
        try:
            with files.folder(self.root) as handle:
                _find(handle, self.root, "", _DEPTH, found, unknown)
        except OSError as error:
            unknown += [] if is_gone(error) else [""]
        runs = {name: self._runs.get(name) or Run(name, path, self.root) for name, path in found.items()}
        for name, run in self._runs.items():  # folders that cannot be listed now are not gone
            if any(not above or name == above or name.startswith(f"{above}/") for above in unknown):
                runs.setdefault(name, run)
        return runs

    def _read(self, runs):
        """Reads some of each log; if that is too much at once, the next call begins with the remaining logs."""
        left = _ROUND
        for count in range(len(runs)):
            if left <= 0:
                break
            left -= runs[(self._turn + count) % len(runs)].read()
        else:
            count = 0
        self._turn = (self._turn + count) % max(1, len(runs))


def _find(handle, folder, name, depth, found, unknown):
    """Finds runs below a folder. Links are not followed: they cannot lead out of the root, or form cycles.

    Args:
        handle: the folder, opened.
        folder: its path.
        name: its name, in the form of run names.
        depth: number of levels of subfolders to search.
        found: dict to which names and paths of runs are added.
        unknown: list to which names of folders are added that cannot be listed now.
    """
    try:
        with files.listing(handle) as entries:
            if name and any(entry.name in _MARKS for entry in entries):
                found[name] = folder
                return
            inner = [entry.name for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        unknown += [] if is_gone(error) else [name]
        return
    for each in inner if depth else ():
        shown = printable(each)  # a name that is not UTF-8 could not be sent to a browser
        shown = f"{name}/{shown}" if name else shown
        try:
            with files.folder(each, dir_fd=handle, follow=False) as opened:
                _find(opened, os.path.join(folder, each), shown, depth - 1, found, unknown)
        except OSError as error:
            unknown += [] if is_gone(error) else [shown]


def _row(run):
    """Returns the row of a run; bad files of one run do not prevent others from being shown."""
    try:
        return run.described()
    except Exception:
        return Row(run.name, "unknown")
