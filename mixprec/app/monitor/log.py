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

PIECE = 4 << 20  # bytes that are read of a log at a time; a line counts as _LEAST at least, which limits their number
_LEAST = 200
_TAIL = 256  # bytes in front of what is new; if they are others than before, the log was written anew
_LONGEST = 1 << 20  # bytes of a line
_KEYS = 100  # columns, and values of an entry
_LONGEST_NAME = 200  # characters
_VALUES_HELD = 2 << 20  # of all columns together, 8 bytes each; above, a stretch of entries becomes two
_GRADIENTS = 1000  # entries of gradients
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
_VERSIONS = itertools.count(1)


def is_gone(error):
    """Returns ``True`` if an ``OSError`` says that there is no such file, or something else in its place.

    Others, of a lack of descriptors or of a disk that does not answer, say nothing about the file.
    """
    return error.errno in _GONE


class LogFile:
    """``log.jsonl`` of a run, and its last entry.

    Training replaces the file as a whole, mostly by one that has a line more, and by a shorter one after a resume. Each
    :meth:`refresh` reads the lines that are new, or all of them where the file does not go on as it was: a piece of
    them at a time, so that no page waits for a file, whatever its size.

    Args:
        path: of the file, which need not be there.
        root: folder below which no link leads to it; default: the folder of the file.

    Attributes:
        last: the last entry, a dict from names to floats: inf where it has ``null``, which stands for inf or NaN.
        damaged: number of lines that are no JSON objects with numbers; they are left out.
        changed: time of the last change, in seconds since 1970; 0 if there is no file.
        share: how much of the file has been read, from 0 to 1.
        problem: why the file cannot be read now, in words; ``None`` if it can. What was read before is kept.
        cost: about how many bytes the last :meth:`refresh` has read.
        version: another number after each refresh that found something new; no two logs have the same, but for 0.
        lock: held by those who read the log or its columns, where several threads do.
    """

    def __init__(self, path, root=None):
        self._path, self._root, self.lock = path, os.path.dirname(path) if root is None else root, threading.RLock()
        self._key, self._looked, self.version, self.cost, self.problem = None, -math.inf, 0, 0, None
        self._start()

    def refresh(self, interval=0.0):
        """Reads the next piece of what is new, unless that was done within the last ``interval`` seconds.

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
        """Returns what a line says, a dict; raises what is not of that form."""
        named = {name: entry[name] for name in itertools.islice(entry.keys(), _KEYS) if len(name) <= _LONGEST_NAME}
        return {name: math.inf if value is None else float(value) for name, value in named.items()}

    def clear(self):
        """Forgets all entries: the file is another one."""

    def take(self, entry):
        """Takes the next entry, a dict as :attr:`last`."""

    def _start(self):
        self.last, self.damaged, self.changed, self.share, self._end, self._tail = {}, 0, 0.0, 1.0, 0, b""
        self._lines, self._is_rest = 0, False  # whether the next piece begins in a line that is too long
        self.clear()

    def _read_piece(self, file):
        status = os.fstat(file.fileno())  # once: a file that grows faster than it is read has an end all the same
        key = status.st_mtime_ns, status.st_size, status.st_ino
        if key == self._key and self.share == 1:
            return
        file.seek(self._end - len(self._tail))
        if file.read(len(self._tail)) != self._tail:
            self._start()
        is_last, used, piece = False, 1, b""
        while used and not is_last and self.cost < PIECE:
            # Not more at a time than a line may have: the memory of each thread keeps room for what it has held.
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
        """Takes lines as long as they are no more than a piece; returns the number of bytes that are done with."""
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
        path: of the file.
        root: as for :class:`LogFile`.

    Attributes:
        columns: a dict from the name of a value to an ``array`` of float64, one for each entry: NaN where the entry has
            no such value, inf where it is ``null``. Of very many entries the smallest and the largest value of each
            stretch stay.
    """

    def __len__(self):
        return self._entries

    def clear(self):
        self.columns, self._entries = {}, 0
        # How many entries of the file each one stands for; the ones behind the first so many stand for one each.
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
        if (
            self._entries * len(self.columns) > _VALUES_HELD
            and self._entries % 4 == 0
            and (self._every == 1 or is_stretch)
        ):
            self._every *= 2
            self._thin(0, 4)

    def _thin(self, start, stretch):
        """Makes two entries of each stretch of so many, from an entry on to the end."""
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
        path: of the file.
        root: as for :class:`LogFile`.

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


def _two(stretch):
    """Returns two values in place of a stretch of a column: the smallest and the largest one, in their order.

    Of a column that grows, such as the iterations, these are the first and the last; of one that has values in only a
    few entries, those values. Null, which is inf, stays where there are no two other values.
    """
    known = [value for value in stretch if not math.isnan(value)] or [math.nan]
    finite = [value for value in known if math.isfinite(value)]
    known = finite if len(finite) > 1 else known
    low, high = min(known), max(known)
    if len(known) == 1:
        return known[0], math.nan
    return (low, high) if known.index(low) <= known.index(high) else (high, low)


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
