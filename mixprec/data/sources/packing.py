"""Writes the images of a source into shards: shuffled once, only complete shards, resumed after a kill."""

import collections
import contextlib
import fcntl
import functools
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from mixprec.base import working_folder
from mixprec.base.announcements import announce
from mixprec.base.bounds import MIB
from mixprec.base.files import TEMPORARY, open_regular, read, replacing, write_text
from mixprec.data.data_error import DataError, and_more, file_errors, printable
from mixprec.data.sources import scan
from mixprec.data.sources.progress import bar, threads
from mixprec.data.sources.shard_folder import LARGEST_MANIFEST, MADE_BY, MANIFEST, UNFINISHED, is_whole, read_manifest
from mixprec.data.sources.shards import FORMATS, sample_problem, scan_shards

SKIPPED = "skipped.txt"

_LOCK = ".packing.lock"
_AHEAD = 64  # images that are read before they are written
_MIB = 2**20
_MEANING = {"source": "images and labels (SHA-256)", "plan": "order and sizes of the images (SHA-256)"}


def pack(source, out, *, form, shard_mib=256.0, seed=0):
    """Writes ``out/images-00000-of-<count>.tar`` or ``.tfrecord``, ..., DALI's index beside each, and a manifest.

    The images come in a random order that follows from ``seed``. A loader reads shards in their order and shuffles
    within a window only, so images that are sorted by class would give batches of one class.

    Each shard is written to a temporary file and renamed. Finished shards are noted in ``packing.json``, which becomes
    ``manifest.json`` at the end: a folder without it is not complete. After a kill, the same call continues, and the
    result is the same byte for byte. The source's images are assumed to be checked.

    Args:
        source (ImageFiles or ImageShards): What to pack.
        out (path): Folder to make; its parent folders are made too.
        form (str): ``'webdataset'`` or ``'tfrecord'``.
        shard_mib (float): About how many MiB of images a shard has, above 0, at most 2^20 (1 TiB).
        seed (int): Of the order; 0 to 2^32 - 1.

    Returns:
        tuple: ``(manifest, made)``: the dict in ``manifest.json``, and whether a shard was written just now.

    Raises:
        DataError: ``out`` cannot be written, holds another set or other files, or is being written by another process;
            an image cannot be read; or an argument is impossible.
    """
    if form not in FORMATS:
        raise DataError(f"format {form!r}: must be one of {', '.join(sorted(FORMATS))}")
    if not 0 < shard_mib <= MIB:
        raise DataError(f"shard_mib {shard_mib}: must be above 0 and at most {MIB}")
    if not 0 <= seed < 2**32:
        raise DataError(f"seed {seed}: must be 0 to 2^32 - 1")
    out = working_folder.real(out)
    if Path(out).is_relative_to(working_folder.real(source.root)):
        raise DataError(f"{printable(out)}: lies in the source, {printable(source.root)}")
    if os.path.isfile(out):
        raise DataError(f"{printable(out)}: is a file; the output must be a folder")
    plan = _plan(source, shard_mib, seed)
    try:
        os.makedirs(out, exist_ok=True)
        with _locked(out):
            return _pack(source, out, form, plan, _settings(source, form, plan, shard_mib, seed))
    except OSError as error:
        more = "; the same call continues the packing" if os.path.exists(os.path.join(out, UNFINISHED)) else ""
        raise DataError(f"{printable(out)}: {error.strerror}{more}") from error


def verify(folder):
    """Compares the SHA-256 of every shard of a packed folder with its manifest, and decodes every image.

    Returns:
        tuple: Number of images and of shards.

    Raises:
        DataError: The folder was not packed by :func:`pack` or not completely, or it names the first shard or image
            that is not as it was written.
    """
    root = working_folder.absolute(folder)
    manifest = read_manifest(root)
    if manifest is None:
        raise DataError(f"{printable(root)}: no {MANIFEST} of mixprec pack")
    images = scan_shards(root)
    changed = []
    shards = manifest["shards"]
    total = sum(shard["bytes"] for shard in shards.values())
    with (
        file_errors(root, "a shard cannot be read"),
        threads() as pool,
        bar("Comparing", root, total=total, unit="B", unit_scale=True) as progress,
    ):
        sums = pool.map(lambda name: _sha256(os.path.join(root, name)), shards)
        for (name, expected), sha256 in zip(shards.items(), sums, strict=True):
            progress.update(expected["bytes"])
            if sha256 != expected["sha256"]:
                changed.append(name)
    if changed:
        path = printable(os.path.join(root, changed[0]))
        raise DataError(f"{path}: has been changed since it was packed (SHA-256){and_more(len(changed))}")
    # A digest of 0 is never taken for checked.
    scan.check(root, np.zeros(len(images), np.uint64), functools.partial(sample_problem, images), images.name)
    return len(images), len(images.shards)


def _plan(source, shard_mib, seed):
    """The indices of the images in each shard: a list of int64 arrays; and a SHA-256 of that and of the sizes."""
    sizes = source.sizes
    order = np.random.default_rng(seed).permutation(len(source))
    before = np.cumsum(sizes[order]) - sizes[order]
    total = int(sizes.sum())
    count = max(1, round(min(total / (shard_mib * _MIB), len(source))))
    shards = before * count // max(total, 1)  # as even as whole images allow
    starts = np.flatnonzero(np.diff(shards, prepend=-1))
    digest = hashlib.sha256()
    for numbers in (order, starts, sizes):
        digest.update(numbers.astype("<i8").tobytes())
    return np.split(order, starts[1:]), digest.hexdigest()


def _settings(source, form, plan, shard_mib, seed):
    """Everything that determines the shards: the manifest, without the shards."""
    return {
        "made by": MADE_BY,
        "format": form,
        "seed": seed,
        "shard_mib": shard_mib,
        "images": len(source),
        "skipped": len(source.skipped),
        "source": source.fingerprint,
        "plan": plan[1],
        "named": source.named,
        "classes": list(source.classes),
    }


@contextlib.contextmanager
def _locked(out):
    """Prevents a second process from writing to the same folder; the lock ends with the process in any case."""
    path = os.path.join(out, _LOCK)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{printable(out)}: another process is packing into this folder") from None
        except OSError as error:
            announce("%s: cannot be locked (%s): don't run two at once", printable(out), error.strerror)
        try:
            yield
        finally:
            os.remove(path)


def _pack(source, out, form, plan, settings):
    notes = os.path.join(out, UNFINISHED)
    manifest = _begun(out, settings) or {**settings, "shards": {}}
    done = manifest["shards"]
    indices = {
        f"images-{number:05}-of-{len(plan[0]):05}{FORMATS[form].SUFFIX}": part for number, part in enumerate(plan[0])
    }
    todo = [name for name in indices if name not in done or not _is_there(os.path.join(out, name), done[name])]
    if not todo and os.path.exists(os.path.join(out, MANIFEST)):
        Path(notes).unlink(missing_ok=True)
        return manifest, False
    for entry in os.scandir(out):
        if entry.name.startswith(TEMPORARY):  # of a process that was killed
            os.remove(entry)
    _write_json(notes, manifest)
    Path(out, MANIFEST).unlink(missing_ok=True)  # a shard has been lost since: not complete any more
    numbers = dict(zip(indices, np.cumsum([0, *map(len, plan[0])]).tolist(), strict=False))
    before = len(source) - sum(len(indices[name]) for name in todo)
    with threads(2) as pool, bar("Packing", out, total=len(source), initial=before, unit="img") as progress:
        for name in todo:
            samples = _encoded(pool, source, FORMATS[form].encode, numbers[name], indices[name].tolist())
            done[name] = _write_shard(os.path.join(out, name), FORMATS[form], samples, progress)
            _write_json(notes, manifest)
    if source.skipped:
        write_text(os.path.join(out, SKIPPED), "".join(f"{name}: {reason}\n" for name, reason in source.skipped))
    manifest["shards"] = {name: done[name] for name in indices}
    _write_json(os.path.join(out, MANIFEST), manifest)
    os.remove(notes)
    return manifest, True


def _begun(out, settings):
    """The notes of an earlier call with the same settings, or None in an empty folder."""
    manifest = _read_json(os.path.join(out, MANIFEST)) or _read_json(os.path.join(out, UNFINISHED))
    if manifest is None:
        foreign = sorted(name for name in os.listdir(out) if name != _LOCK and not name.startswith(TEMPORARY))
        if foreign:
            raise DataError(f"{printable(out)}: not empty, and not made by mixprec: holds {printable(foreign[0])}")
        return None
    for key, value in settings.items():
        if manifest.get(key) != value:
            there = "" if isinstance(value, list) else f" {manifest.get(key)}, not {value}"
            what = _MEANING.get(key, key)
            raise DataError(f"{printable(out)}: holds a set with other {what}{there}; choose another folder")
    return manifest


def _is_there(path, expected):
    return os.path.isfile(_index_path(path)) and os.path.isfile(path) and os.path.getsize(path) == expected["bytes"]


def _index_path(path):
    return f"{os.path.splitext(path)[0]}.idx"


def _encoded(pool, source, encode, first, indices):
    """Reads and encodes the images ahead of the one that is yielded."""

    def sample(number, index):
        name = os.path.basename(source.name(index).rpartition(": ")[2])
        return encode(number, source.read(index), int(source.labels[index]), name)

    pending = collections.deque()
    for number, index in enumerate(indices, first):
        pending.append(pool.submit(sample, number, index))
        if len(pending) > _AHEAD:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _write_shard(path, module, samples, progress):
    """Writes a shard, then its index; returns what the manifest says of it."""
    digest, size, lines = hashlib.sha256(), 0, []
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for record, line in samples:
            lines.append(line(size))
            file.write(record)
            digest.update(record)
            size += len(record)
            progress.update()
        file.write(module.END)
        digest.update(module.END)
        size += len(module.END)
    write_text(_index_path(path), module.index_text(lines))
    return {"images": len(lines), "bytes": size, "sha256": digest.hexdigest()}


def _sha256(path):
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while content := file.read(_MIB):
            digest.update(content)
    return digest.hexdigest()


def _read_json(path):
    """A dict that this module wrote, or None."""
    try:
        manifest = json.loads(read(path, LARGEST_MANIFEST).decode())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise DataError(f"{printable(path)}: {error.strerror}") from error
    return manifest if is_whole(manifest) else None


def _write_json(path, content):
    write_text(path, json.dumps(content, indent=1) + "\n")
