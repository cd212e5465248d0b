"""The log of a run as columns of numbers. What has been read is not read again."""

import array
import itertools
import json
import math
import os

from mixprec import files

_TAIL = 256  # bytes in front of what is new; if they are others than before, the log was written anew
_LONGEST = 1 << 20  # bytes of a line
_KEYS = 100  # columns
_GRADIENTS = 1000  # entries of gradients
_VERSIONS = itertools.count(1)


class LogFile:
    """``log.jsonl`` of a run, and its last entry.

    Training replaces the file as a whole, mostly by one that has a line more, and by a shorter one after a resume. Each
    :meth:`refresh` reads the lines that are new, or all of them where the file does not go on as it was.

    Args:
        path: of the file, which need not be there.

    Attributes:
        last: the last entry, a dict from names to floats: inf where it has ``null``, which stands for inf or NaN.
        damaged: number of lines that are no JSON objects with numbers; they are left out.
        changed: time of the last change, in seconds since 1970; 0 if there is no file.
        version: another number after each refresh that found something new; no two logs have the same, but for 0.
    """

    def __init__(self, path):
        self._path, self._key, self.version = path, None, 0
        self._start()

    def refresh(self):
        """Reads what is new; returns ``True`` if something is. A file that is gone or cannot be read has no entries."""
        try:
            file = files.open_regular(self._path, follow=False)
        except OSError:
            if self._key is None:
                return False
            self._key = None
            self._start()
            self.version = next(_VERSIONS)
            return True
        with file:
            status = os.fstat(file.fileno())
            key = status.st_mtime_ns, status.st_size, status.st_ino
            if key == self._key:
                return False
            self._read(file)
        self._key, self.changed = key, status.st_mtime
        self.version = next(_VERSIONS)
        return True

    def parse(self, entry):
        """Returns what a line says, a dict; raises what is not of that form."""
        return {name: math.inf if value is None else float(value) for name, value in entry.items()}

    def clear(self):
        """Forgets all entries: the file is another one."""

    def take(self, entry):
        """Takes the next entry, a dict as :attr:`last`."""

    def _start(self):
        self.last, self.damaged, self.changed, self._end, self._tail = {}, 0, 0.0, 0, b""
        self.clear()

    def _read(self, file):
        file.seek(self._end - len(self._tail))
        if file.read(len(self._tail)) != self._tail:
            self._start()
            file.seek(0)
        is_rest = False  # of a line that is too long
        while line := file.readline(_LONGEST):
            is_whole = line.endswith(b"\n")
            if not is_whole and len(line) < _LONGEST:  # another program is just writing it
                break
            self._end += len(line)
            self._tail = (self._tail + line)[-_TAIL:]
            if is_rest or not is_whole:
                self.damaged += is_whole
                is_rest = not is_whole
                continue
            try:
                self.last = self.parse(json.loads(line))
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError):
                self.damaged += 1
            else:
                self.take(self.last)


class Log(LogFile):
    """``log.jsonl`` of a run, as columns.

    Args:
        path: of the file.

    Attributes:
        columns: a dict from the name of a value to an ``array`` of float64, one for each entry: NaN where the entry has
            no such value, inf where it is ``null``.
    """

    def __len__(self):
        return self._entries

    def clear(self):
        self.columns, self._entries = {}, 0

    def take(self, entry):
        for name in entry:
            if name not in self.columns and len(self.columns) < _KEYS:
                self.columns[name] = array.array("d", [math.nan]) * self._entries
        for name, column in self.columns.items():
            column.append(entry.get(name, math.nan))
        self._entries += 1

    def values(self, name):
        """Returns the column of a value; all NaN if no entry has it."""
        return self.columns.get(name) or array.array("d", [math.nan]) * self._entries


class GradientLog(LogFile):
    """``gradients.jsonl`` of a run, without its layers.

    Args:
        path: of the file.

    Attributes:
        entries: list of dicts with ``iteration``, ``loss_scale``, ``lowest`` and ``binades``, in the order of the file;
            of very many, every second, fourth and so on.
    """

    def parse(self, entry):
        binades, scale, lowest = entry["binades"], float(entry["loss_scale"]), int(entry["lowest"])
        if not (0 < scale < math.inf and -200 < lowest < 200 and len(binades) < 400):
            raise ValueError
        counts = array.array("d", map(float, binades))
        if not all(count == 0 or 1 <= count < 2**63 for count in counts):
            raise ValueError
        return {"iteration": int(entry["iteration"]), "loss_scale": scale, "lowest": lowest, "binades": counts}

    def clear(self):
        self.entries, self._every, self._seen = [], 1, 0

    def take(self, entry):
        if self._seen % self._every == 0:
            self.entries.append(entry)
        self._seen += 1
        if len(self.entries) > _GRADIENTS:
            self.entries, self._every = self.entries[::2], 2 * self._every


def sampled(x, y, most=1000):
    """Returns the points of a curve, and of one with very many points as many as can be seen.

    The points are cut into stretches of equal length, of which the smallest and the largest value stay, so that no peak
    is lost.

    Args:
        x: sequence of floats.
        y: sequence of floats of the same length; NaN is left out, and inf becomes a gap.
        most: number of points from which on some are left out.

    Returns:
        list of ``[x, y]``, ``y`` being ``None`` at a gap.
    """
    if math.isnan(sum(y)) or not math.isfinite(sum(x)):
        known = [(a, b) for a, b in zip(x, y, strict=True) if not math.isnan(b) and math.isfinite(a)]
        x, y = zip(*known, strict=True) if known else ((), ())
    chosen = range(len(y))
    if len(y) > most:
        length = math.ceil(2 * len(y) / most)
        chosen = [start + index for start in range(0, len(y), length) for index in _peaks(y[start : start + length])]
    return [[x[index], y[index] if math.isfinite(y[index]) else None] for index in chosen]


def _peaks(stretch):
    """Returns the places of the smallest and the largest value of a part of a curve, and of its first gap: sorted."""
    finite = list(filter(math.isfinite, stretch))
    places = {stretch.index(min(finite)), stretch.index(max(finite))} if finite else set()
    if len(finite) < len(stretch):
        places.add(next(index for index, value in enumerate(stretch) if not math.isfinite(value)))
    return sorted(places)
