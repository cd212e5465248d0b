"""A run, described by the files in its folder of results."""

import dataclasses
import errno
import json
import math
import os
import platform
import stat
import threading
import time

import yaml

from mixprec.app.monitor.log import LogFile, is_gone
from mixprec.base import files
from mixprec.base.messages import one_line, printable
from mixprec.base.process_limits import is_alive

_LARGEST = 1 << 20  # bytes of a text that is shown
_LARGEST_SETTINGS = 1 << 16  # bytes of a config, or a heartbeat
_LONGEST_VALUE = 10_000  # characters of a setting
_DEEPEST = 20  # levels of a config: the parser in C ends the process when it runs out of stack
_SILENT = 60  # seconds without a sign of life after which a training run counts as silent
_BEST = "validation/main/accuracy"
_COLUMNS = (_BEST, "epoch", "images/s", "loss_scale", "skipped")  # of a log, for the table
_ENDED = ["done", "stopped", "failed"]
RUNNING = ["training", "evaluating"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table of runs.

    Attributes:
        name: path below the root, with ``/``.
        state: ``training``, ``evaluating``, ``done``, ``stopped``, ``failed``, ``killed``, ``silent`` (no sign of life
            for a minute, from another machine) or ``unknown``.
        arch, precision: values of its config; empty if unknown.
        epoch: current epoch; ``None`` if unknown.
        epochs: last epoch; ``None`` if unknown.
        best: highest validation accuracy; ``None`` if there is none.
        last: last validation accuracy; ``None`` if there is none.
        speed: images/s of the last entry.
        scale: loss scale of the last entry.
        skipped: number of skipped steps of the last entry.
        left: remaining seconds, as training estimates them; ``None`` if it does not run.
        changed: time of the last entry or sign of life, in seconds since 1970.
        share: share of the log that has been read, from 0 to 1.
    """

    name: str
    state: str
    arch: str = ""
    precision: str = ""
    epoch: float | None = None
    epochs: float | None = None
    best: float | None = None
    last: float | None = None
    speed: float | None = None
    scale: float | None = None
    skipped: float | None = None
    left: float | None = None
    changed: float = 0.0
    share: float = 1.0


class Run:
    """A folder of results. Links are not followed to any of its files.

    Args:
        name: path below the root, as it is listed.
        folder: path.
        root: folder below which links to it are not followed; default: the folder itself.
    """

    def __init__(self, name, folder, root=None):
        self.name, self.folder, self.root = name, folder, folder if root is None else root
        self._best = _Best(os.path.join(folder, "log.jsonl"), self.root)
        self._config = _Cached(self, "config.yaml", _settings, {})
        self._status = _Cached(self, "status.json", _object, {})

    @property
    def config(self):
        """The settings by dotted name; empty if they cannot be read."""
        return self._config.value()

    @property
    def status(self):
        """The heartbeat of training, a dict; empty if there is none."""
        return self._status.value()

    def read(self, interval=0.0):
        """Reads the next piece of the log, as :meth:`mixprec.app.monitor.log.LogFile.refresh` does.

        Returns:
            int: approximate number of bytes read.
        """
        self._best.refresh(interval)
        return self._best.cost

    def row(self, interval=0.0):
        """Reads the log by :meth:`read`, and returns the current :class:`Row`. May be called by threads."""
        self.read(interval)
        return self.described()

    def described(self):
        """Returns the :class:`Row` from the part of the log read so far, and from the current small files."""
        status, config = self.status, self.config
        with self._best.lock:
            last, best, accuracy = self._best.last, self._best.best, self._best.accuracy
            changed, share = self._best.changed, self._best.share
        state = self._state(status)
        return Row(
            self.name,
            state,
            *(one_line(config.get(key, ""), 100) for key in ("model.arch", "precision.compute")),
            _number(status.get("epoch"), last.get("epoch")),
            _number(status.get("epochs"), config.get("training.epochs")),
            *map(_number, (best, accuracy, last.get("images/s"), last.get("loss_scale"), last.get("skipped"))),
            _number(status.get("seconds_left")) if state in RUNNING else None,
            max(changed, self._status.changed),
            share,
        )

    def text(self, name):
        """Returns the start of a text file of the run; ``None`` if it is not there or cannot be read.

        Args:
            name: name of the file, a constant of the program.
        """
        try:
            with files.open_below(self.root, os.path.join(self.folder, name)) as file:
                return file.read(_LARGEST).decode("utf-8", "replace")
        except OSError:
            return None

    def weights(self):
        """Returns the names of the files that hold weights: ``model.npz`` first, and snapshots, the newest first.

        Raises:
            OSError: the folder exists, but cannot be listed now.
        """
        try:
            with files.folder_below(self.root, self.folder) as folder, files.listing(folder) as entries:
                names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except OSError as error:
            if not is_gone(error):
                raise
            return []
        names = [name for name in names if name.isprintable()]  # others could not be sent to a browser
        snapshots = [name for name in names if name.startswith("snapshot_") and name.endswith(".npz")]
        snapshots.sort(key=lambda name: (name != "snapshot_best.npz", -_iteration(name)))
        return [name for name in names if name == "model.npz"] + snapshots

    def changed(self, name):
        """Returns the time of the last change of a file of the run, in seconds since 1970; ``None`` if it is gone."""
        status = self._status_of(name)
        return None if status is None else status.st_mtime

    def size(self, name):
        """Returns the number of bytes of a file of the run; 0 if it is gone."""
        status = self._status_of(name)
        return 0 if status is None else status.st_size

    def _status_of(self, name):
        try:
            with files.folder_below(self.root, self.folder) as folder:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _state(self, status):
        state = status.get("state")
        if state in _ENDED:
            return state
        if not isinstance(state, str):  # None: there is no status.json
            return "unknown" if self.changed("model.npz") is None else "done"
        if status.get("host") == platform.node():
            return state if state in RUNNING and is_alive(status) else "killed"
        age = time.time() - (_number(status.get("time")) or 0.0)
        return printable(state) if age < _SILENT else "silent"


class _Best(LogFile):
    """The log without its columns, for the table: thousands of them are held."""

    def parse(self, entry):
        return super().parse({name: entry[name] for name in _COLUMNS if name in entry})

    def clear(self):
        self.best = self.accuracy = None

    def take(self, entry):
        accuracy = entry.get(_BEST, math.inf)
        if math.isfinite(accuracy):
            self.accuracy = accuracy
            self.best = accuracy if self.best is None else max(self.best, accuracy)


class _Cached:
    """The contents of a small file, parsed again when it changes."""

    def __init__(self, run, name, parse, default):
        self._run, self._name, self._parse, self._default = run, name, parse, default
        self._lock = threading.Lock()
        self._key, self._value, self.changed = None, default, 0.0

    def value(self):
        with self._lock:
            try:
                self._look()
            except OSError as error:
                if is_gone(error) or error.errno == errno.EFBIG:
                    self._key, self._value, self.changed = None, self._default, 0.0
            return self._value

    def _look(self):
        with files.folder_below(self._run.root, self._run.folder) as folder:
            status = os.stat(self._name, dir_fd=folder, follow_symlinks=False)
            key = status.st_mtime_ns, status.st_size, status.st_ino
            if key == self._key:
                return
            data = files.read(self._name, _LARGEST_SETTINGS, follow=False, dir_fd=folder)
        try:
            self._value = self._parse(data)
        except Exception:  # PyYAML raises a dozen kinds, for known tags with invalid values
            self._value = self._default
        self._key, self.changed = key, status.st_mtime


def _object(data):
    value = json.loads(data)
    return value if isinstance(value, dict) else {}


def _settings(data):
    """Returns the config that training wrote, flat. Aliases are refused, as they can make a small file endless."""
    text = data.decode()
    loader, depth = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST or isinstance(event, yaml.AliasEvent):
            return {}
    sections = yaml.load(text, Loader=loader)  # a safe loader
    if not isinstance(sections, dict):
        return {}
    return {
        f"{section}.{key}": value
        for section, keys in sections.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
        if len(str(value)) < _LONGEST_VALUE  # an error for integers of thousands of digits
    }


def differences(configs):
    """Returns the settings in which configs differ.

    Args:
        configs: list of dicts from dotted names to values.

    Returns:
        list of tuples: a name, and its value in each config as text; a dash where it has none.
    """
    names = dict.fromkeys(name for config in configs for name in config)
    shown = [(name, *("-" if name not in config else str(config[name]) for config in configs)) for name in names]
    return [row for row in shown if len(set(row[1:])) > 1]


def _number(*values):
    """Returns the first of some values that is a finite number, or ``None``."""
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:  # inf, NaN are not
            return float(value)
    return None


def _iteration(name):
    digits = "".join(filter(str.isdecimal, name))
    return int(digits) if 0 < len(digits) < 20 else -1
