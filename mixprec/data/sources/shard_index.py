"""The positions of the images in one shard; read from the shard once, and then from a cache."""

import dataclasses
import hashlib
import os

import numpy as np

from mixprec.base.announcements import announce
from mixprec.base.archives import Damaged, read_arrays, reading
from mixprec.base.files import cache_folder, replacing
from mixprec.data.data_error import printable

# Part of every entry of the cache: raise it when the index of an unchanged shard would differ.
_VERSION = 1

_SEPARATOR = "\0"


@dataclasses.dataclass(frozen=True, eq=False)
class ShardIndex:
    """The samples of one shard, in its order.

    Attributes:
        names (list of str): For messages, in one line each.
        labels (numpy.ndarray): int64, (N,); -1 where there is a problem.
        offsets (numpy.ndarray): int64, (N,): first byte of the encoded image in the shard.
        sizes (numpy.ndarray): int64, (N,): its number of bytes.
        lines (list of str): The sample's line in DALI's index file.
        problems (list of str): The fault of a sample in one line, or ``""``.
    """

    names: list
    labels: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    lines: list
    problems: list

    @classmethod
    def of(cls, samples):
        """Makes an index from tuples (name, label or None, offset, size, line, problem or None)."""
        names, labels, offsets, sizes, lines, problems = map(list, zip(*samples, strict=True)) if samples else [[]] * 6
        return cls(
            [printable(name) for name in names],
            np.array([-1 if problem else label for label, problem in zip(labels, problems, strict=True)], np.int64),
            np.array(offsets, np.int64),
            np.array(sizes, np.int64),
            lines,
            [problem or "" for problem in problems],
        )

    def __len__(self):
        return len(self.labels)  # lists of no strings come back from the cache as one empty string


def cached_index(path, status, read):
    """Returns ``read(path)``, a :class:`ShardIndex`, from the cache if the shard's size and time are the same.

    Args:
        path (str): Absolute path of the shard.
        status (os.stat_result): Status of the shard, before it is read.
        read (callable): Function of the format that reads the shard.
    """
    cache = cache_folder() / f"shard-index-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.npz"
    key = f"{_VERSION} {read.__module__} {status.st_size} {status.st_mtime_ns} {path}"
    index = _load(cache, key)
    if index is None:
        index = read(path)
        _save(cache, key, index)
    return index


def _load(cache, key):
    try:
        with open(cache, "rb") as file, reading():
            stored = read_arrays(file)
            if _strings(stored["key"]) != [key]:
                return None
            return ShardIndex(
                **{
                    field.name: _strings(stored[field.name]) if field.type is list else stored[field.name]
                    for field in dataclasses.fields(ShardIndex)
                }
            )
    except (OSError, Damaged):  # none yet, or not one of ours
        return None


def _save(cache, key, index):
    arrays = {"key": _bytes([key])}
    for field in dataclasses.fields(ShardIndex):
        value = getattr(index, field.name)
        arrays[field.name] = _bytes(value) if field.type is list else value
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with replacing(cache) as temporary:
            np.savez(temporary, **arrays)
    except OSError as error:
        announce(
            "%s: cannot be written (%s): the shards are listed again each time",
            printable(str(cache.parent)),
            error.strerror,
        )


def _bytes(strings):
    """An array that ``np.load`` reads without pickle."""
    return np.frombuffer(_SEPARATOR.join(strings).encode("utf-8", "surrogateescape"), np.uint8)


def _strings(array):
    return array.tobytes().decode("utf-8", "surrogateescape").split(_SEPARATOR)
