"""The log of a run as columns of numbers, read piece by piece. What has been read is not read again."""

import array
import errno
import itertools
import json
import math
import os
import threading
import time

from mixprec.base import files

PIECE = 4 << 20  # bytes of a log that are read at a time; a line counts as at least _LEAST, which limits their number
_LEAST = 200
_TAIL = 256  # bytes before the new part; if they have changed, the log was rewritten
_LONGEST = 1 << 20  # bytes of a line
_KEYS = 100  # columns, and values of an entry
_LONGEST_NAME = 200  # characters
_VALUES_HELD = 2 << 20  # of all columns together, 8 bytes each; above, a stretch of entries becomes two
_GRADIENTS = 1000  # entries of gradients
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
_VERSIONS = itertools.count(1)


def is_gone(error):
    """Returns ``True`` if an ``OSError`` means that the file is missing, or replaced by something else.

    Other errors, such as a lack of descriptors or an unresponsive disk, tell nothing about the file.
    """
    return error.errno in _GONE


class LogFile:
    """``log.jsonl`` of a run, and its last entry.

    Training replaces the whole file, usually by one with one more line, and by a shorter one after a resume. Each
    :meth:`refresh` reads the new lines, or all lines if the file is not a continuation: one piece at a time, so that no
    page waits for a large file.

    Args:
        path: path of the file, which need not exist.
        root: folder below which links to it are not followed; default: the folder of the file.

    Attributes:
        last: the last entry, a dict from names to floats: inf where it has ``null``, which stands for inf or NaN.
        damaged: number of lines that are not JSON objects with numbers; they are left out.
        changed: time of the last change, in seconds since 1970; 0 if there is no file.
        share: share of the file that has been read, from 0 to 1.
        problem: the reason why the file cannot be read now; ``None`` if it can. Earlier entries are kept.
        cost: approximate number of bytes that the last :meth:`refresh` has read.
        version: changes with each refresh that found something new; except for 0, no two logs have the same.
        lock: to be held while reading the log or its columns, if there are several threads.
    """

    def __init__(self, path, root=None):
        self._path, self._root, self.lock = path, os.path.dirname(path) if root is None else root, threading.RLock()
        self._key, self._looked, self.version, self.cost, self.problem = None, -math.inf, 0, 0, None
        self._start()

    def refresh(self, interval=0.0):
        """Reads the next piece of the new part, unless that was done within the last ``interval`` seconds.

        Returns:
            bool: whether something is new. A file that is gone has no entries.
        """
        with self.lock:
            self.cost = 0
            if time.monotonic() - self._looked < interval:
                return False
            before = self._key, self._lines, self.problem
            try:
                with files.open_below(self._root, self._path) as file:
                    self._read_piece(file)
                self.problem = None
            except OSError as error:
                if is_gone(error):
                    self._key = self.problem = None
                    self._start()
                else:
                    self.problem = error.strerror or type(error).__name__
            self._looked = time.monotonic()
            if (self._key, self._lines, self.problem) == before:
                return False
            self.version = next(_VERSIONS)
            return True

    def parse(self, entry):
        """Returns the entry in a line, a dict; raises an exception for any other form."""
        named = {name: entry[name] for name in itertools.islice(entry.keys(), _KEYS) if len(name) <= _LONGEST_NAME}
        return {name: math.inf if value is None else float(value) for name, value in named.items()}

    def clear(self):
        """Forgets all entries: the file has been replaced."""

    def take(self, entry):
        """Adds the next entry, a dict like :attr:`last`."""

    def _start(self):
        self.last, self.damaged, self.changed, self.share, self._end, self._tail = {}, 0, 0.0, 1.0, 0, b""
        self._lines, self._is_rest = 0, False  # whether the next piece begins in a line that is too long
        self.clear()

    def _read_piece(self, file):
        status = os.fstat(file.fileno())  # once, so that reading ends even if the file grows faster than it is read
        key = status.st_mtime_ns, status.st_size, status.st_ino
        if key == self._key and self.share == 1:
            return
        file.seek(self._end - len(self._tail))
        if file.read(len(self._tail)) != self._tail:
            self._start()
        is_last, used, piece = False, 1, b""
        while used and not is_last and self.cost < PIECE:
            # Not more at a time than the longest line: allocators of threads keep their memory.
            wanted = max(0, min(_LONGEST, PIECE - self.cost, status.st_size - self._end))
            file.seek(self._end)
            piece = file.read(wanted)
            is_last = len(piece) < wanted or self._end + wanted >= status.st_size
            used = self._take_lines(piece)
            self._end += used
            self._tail = (self._tail + piece[max(0, used - _TAIL) : used])[-_TAIL:]
        # A part of a line at the end is being written by another program.
        is_done = is_last and piece.find(b"\n", used) < 0
        self.share = 1.0 if is_done else min(0.999, self._end / status.st_size)
        self._key, self.changed = key, status.st_mtime

    def _take_lines(self, piece):
        """Adds lines up to the size of a piece; returns the number of bytes consumed."""
        used = 0
        while self.cost < PIECE:
            end = piece.find(b"\n", used) + 1
            length = (end or len(piece)) - used
            if not end and not self._is_rest and length < _LONGEST:
                break
            if length == 0:
                break
            self.cost += max(length, _LEAST)
            self._lines += bool(end)
            line, used = piece[used : used + length], used + length
            if self._is_rest or length > _LONGEST or not end:
                self.damaged += bool(end)
                self._is_rest = not end
                continue
            try:
                self.last = self.parse(json.loads(line))
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError):
                self.damaged += 1
            else:
                self.take(self.last)
        return used


class Log(LogFile):
    """``log.jsonl`` of a run, as columns.

    Args:
        path: path of the file.
        root: as for :class:`LogFile`.

    Attributes:
        columns: a dict from the name of a value to an ``array`` of float64, one for each entry: NaN where the entry has
            no such value, inf where it is ``null``. For very many entries, only the smallest and the largest value of
            each stretch are kept.
    """

    def __len__(self):
        return self._entries

    def clear(self):
        self.columns, self._entries = {}, 0
        # The number of entries of the file that each one represents; entries after the merged ones represent one each.
        self._every, self._thinned = 1, 0

    def take(self, entry):
        for name in entry:
            if name not in self.columns and len(self.columns) < _KEYS:
                self.columns[name] = array.array("d", [math.nan]) * self._entries
        for name, column in self.columns.items():
            column.append(entry.get(name, math.nan))
        self._entries += 1
        is_stretch = self._entries - self._thinned == 2 * self._every
        if self._every > 1 and is_stretch:
            self._thin(self._thinned, 2 * self._every)
        is_large = self._entries * len(self.columns) > _VALUES_HELD
        if is_large and self._entries % 4 == 0 and (self._every == 1 or is_stretch):
            self._every *= 2
            self._thin(0, 4)

    def _thin(self, start, stretch):
        """Merges each stretch of entries into two, from an entry on to the end."""
        for column in self.columns.values():
            kept = [value for at in range(start, len(column), stretch) for value in _two(column[at : at + stretch])]
            column[start:] = array.array("d", kept)
        self._entries = self._thinned = start + 2 * (self._entries - start) // stretch

    def values(self, name):
        """Returns the column of a value; all NaN if no entry has it."""
        return self.columns.get(name) or array.array("d", [math.nan]) * self._entries


class GradientLog(LogFile):
    """``gradients.jsonl`` of a run, without its layers.

    Args:
        path: path of the file.
        root: as for :class:`LogFile`.

    Attributes:
        entries: list of dicts with ``iteration``, ``loss_scale``, ``lowest`` and ``binades``, in the order of the file;
            for very many, every second, fourth and so on.
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


def _two(stretch):
    """Returns two values for a stretch of a column: the smallest and the largest, in their order.

    For a growing column, such as the iterations, these are the first and the last; for a sparse column, its values.
    Null, stored as inf, stays if there are not two other values.
    """
    known = [value for value in stretch if not math.isnan(value)] or [math.nan]
    finite = [value for value in known if math.isfinite(value)]
    known = finite if len(finite) > 1 else known
    low, high = min(known), max(known)
    if len(known) == 1:
        return known[0], math.nan
    return (low, high) if known.index(low) <= known.index(high) else (high, low)


def sampled(x, y, most=1000):
    """Returns the points of a curve, reduced to a visible number if there are very many.

    The points are divided into stretches of equal length, which keep their smallest and largest value, so that no peak
    is lost.

    Args:
        x: sequence of floats.
        y: sequence of floats of the same length; NaN is left out, and inf becomes a gap.
        most: largest number of points.

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
    """Returns the indices of the smallest and largest value of a part of a curve, and of its first gap, sorted."""
    finite = list(filter(math.isfinite, stretch))
    places = {stretch.index(min(finite)), stretch.index(max(finite))} if finite else set()
    if len(finite) < len(stretch):
        places.add(next(index for index, value in enumerate(stretch) if not math.isfinite(value)))
    return sorted(places)
