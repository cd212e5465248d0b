"""The shards in a folder, and the check that none is missing."""

import json
import os
import re

from mixprec.base.files import read
from mixprec.base.messages import encoding_hint
from mixprec.data.data_error import DataError, and_more, file_errors, printable
from mixprec.data.sources.folders import visible

MANIFEST = "manifest.json"
MADE_BY = "mixprec's pack_dataset.py"  # distinguishes our manifest from foreign files
LARGEST_MANIFEST = 1 << 28  # bytes: a million long names of classes
UNFINISHED = "packing.json"  # used instead of the manifest until all shards are written

_OF = re.compile(r"(.*)-(\d+)-of-(\d+)(\.\w+)?")
_ENDINGS = {"tfrecord": (".tfrecord", ".tfrecords"), "webdataset": (".tar",)}


def shard_format(folder):
    """Returns the format of the shards in a folder, ``'tfrecord'`` or ``'webdataset'``, or None if it has none.

    Raises:
        DataError: It has shards of both, or cannot be read.
    """
    found = {form for entry in visible(folder, "shards") if (form := _format_of(entry.name))}
    if len(found) > 1:
        raise DataError(f"{printable(folder)}: holds both TFRecord and WebDataset shards; must be one of them")
    if not found:
        read_manifest(folder)  # packing may have been interrupted before the first shard was there
    return found.pop() if found else None


def shard_paths(root, manifest):
    """Returns the sorted paths of the shards in ``root``.

    Args:
        root (str): Absolute path.
        manifest (dict or None): Manifest of a packed folder, from :func:`read_manifest`.

    Raises:
        DataError: There are none, or one is missing, differs in size from the manifest, belongs to another set, or its
            path is not UTF-8.
    """
    paths = [os.path.join(root, entry.name) for entry in visible(root, "shards") if _format_of(entry.name)]
    if not paths and manifest is None:
        raise DataError(f"{printable(root)}: no shards; must be *.tar, *.tfrecord, or like train-00003-of-00010")
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{printable(path)}: the path is not valid UTF-8{encoding_hint(path)}") from error
    if manifest is None:
        _check_complete(root, paths)
    else:
        _check_listed(root, paths, manifest["shards"])
    return paths


def read_manifest(root):
    """Returns the dict that ``mixprec pack`` wrote when it was done, or None for foreign shards."""
    path = os.path.join(root, MANIFEST)
    try:
        manifest = json.loads(read(path, LARGEST_MANIFEST).decode())
    except FileNotFoundError:
        if os.path.exists(os.path.join(root, UNFINISHED)):
            raise DataError(f"{printable(root)}: not complete: the same call of mixprec pack goes on with it") from None
        return None
    except OSError as error:
        raise DataError(f"{printable(path)}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # without it classes have no names, and a shard may be missing
        raise DataError(f"{printable(path)}: damaged: not JSON") from error
    if not _is_ours(manifest):
        return None
    if not is_whole(manifest):
        raise DataError(f"{printable(path)}: damaged: not as mixprec pack writes it")
    return manifest


def is_whole(manifest):
    """Whether the content of a JSON file is a manifest of ``mixprec pack``, or the notes for one."""
    if not _is_ours(manifest):
        return False
    classes, shards = manifest.get("classes"), manifest.get("shards")
    return (
        type(manifest.get("named")) is bool
        and isinstance(classes, list)
        and all(map(_is_name, classes))
        and isinstance(shards, dict)
        and all(_is_name(name) and "/" not in name and _is_shard(shard) for name, shard in shards.items())
    )


def _is_ours(manifest):
    return isinstance(manifest, dict) and manifest.get("made by") == MADE_BY


def _is_name(text):
    try:
        return isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _is_shard(shard):
    kinds = {"images": int, "bytes": int, "sha256": str}
    return isinstance(shard, dict) and all(type(shard.get(key)) is kind for key, kind in kinds.items())


def _format_of(name):
    for form, endings in _ENDINGS.items():
        if name.endswith(endings):
            return form
    match = _OF.fullmatch(name)
    return "tfrecord" if match and not match[4] else None


def _check_complete(root, paths):
    """Raises :class:`DataError` for the first one missing of shards that are called ``<name>-<number>-of-<count>``."""
    sets = {}
    for path in paths:
        match = _OF.fullmatch(os.path.basename(path))
        if match:
            sets.setdefault((match[1], match[3], match[4] or ""), {})[int(match[2])] = len(match[2])
    if len(sets) > 1:
        first, second = (f"{name}-*-of-{count}{ending}" for name, count, ending in sorted(sets)[:2])
        raise DataError(f"{printable(root)}: holds two sets of shards, {first} and {second}; must be one")
    for (name, count, ending), numbers in sets.items():
        # Some count from 0, some from 1.
        first = 1 if 0 not in numbers and int(count) in numbers else 0
        missing = sorted(set(range(first, first + int(count))) - set(numbers))
        if missing:
            width = next(iter(numbers.values()))
            absent = f"{name}-{missing[0]:0{width}}-of-{count}{ending}"
            raise DataError(f"{printable(os.path.join(root, absent))}: this shard is missing{and_more(len(missing))}")


def _check_listed(root, paths, listed):
    foreign = sorted({os.path.basename(path) for path in paths} - set(listed))
    if foreign:
        raise DataError(f"{printable(os.path.join(root, foreign[0]))}: a shard that {MANIFEST} does not list")
    for name, expected in listed.items():
        path = os.path.join(root, name)
        with file_errors(path, "this shard is missing"):
            size = os.path.getsize(path)
        if size != expected["bytes"]:
            raise DataError(f"{printable(path)}: has {size} bytes; {expected['bytes']} were written when it was packed")
