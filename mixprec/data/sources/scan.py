"""Decodes every image once before training: good images are remembered, bad ones stop it or are left out."""

import hashlib
import os
import warnings

import numpy as np

from mixprec.base.announcements import announce
from mixprec.base.archives import Damaged, read_array
from mixprec.base.files import cache_folder, replacing
from mixprec.data.data_error import DataError, and_more, printable
from mixprec.data.sources.image_check import A_FOLDER, CHECK_VERSION
from mixprec.data.sources.progress import bar, threads

LEAVE_OUT = "leave out bad images by data.on_error=skip (mixprec pack: --on-error skip)"
_CHUNK = 64


def digest(path, status, part=""):
    """64 bits that change with a file's path, size or modification time, for :func:`check`.

    Args:
        path (str): Absolute path.
        status (os.stat_result): Status of the file.
        part (str): The part of the file, if it holds several images.

    Returns:
        int: 0 to 2^64 - 1.
    """
    key = f"{CHECK_VERSION}\0{status.st_size}\0{status.st_mtime_ns}\0".encode() + os.fsencode(f"{part}\0{path}")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def check(root, digests, problem, name, on_error="stop"):
    """Checks the images that have not been found good before, on all cores.

    A good image is not checked again as long as its digest stays the same: the cache lies in
    ``$XDG_CACHE_HOME/mixprec`` (``~/.cache/mixprec``), 8 bytes an image. Bad images are checked every time.

    Args:
        root (str): Path of the source; each has its own cache.
        digests (array): uint64, (N,): one :func:`digest` an image; 0 never counts as checked.
        problem (callable): From an index to the fault of the image in one line, or None; called by threads.
        name (callable): From an index to the name of the image for messages.
        on_error (str): ``'stop'`` or ``'skip'``.

    Returns:
        tuple: ``(good, skipped)``: bool (N,), and a tuple of (name, reason) for each bad image.

    Raises:
        DataError: There are bad images and ``on_error`` is ``'stop'``, or all of them are bad; it names up to ten.
    """
    if on_error not in ("stop", "skip"):
        raise DataError(f"on_error {on_error!r}: must be 'stop' or 'skip'")
    good, problems = _problems(root, np.asarray(digests, np.uint64), problem)
    if problems and (on_error == "stop" or not good.any()):
        first, *others = sorted(problems)
        others = [name(index).removeprefix(f"{printable(root)}/") for index in others]
        above = "; give the folder that holds the class folders" if set(problems.values()) == {A_FOLDER} else ""
        end = LEAVE_OUT if good.any() else f"no image is left{above}"
        raise DataError(f"{name(first)}: {problems[first]}{and_more(len(problems), others)}; {end}")
    return good, tuple((name(index), problems[index]) for index in sorted(problems))


def _problems(root, digests, problem):
    """Returns which images are good, bool (N,), and {index: fault} of the others."""
    cache = _cache_file(root)
    known = _read_cache(cache)
    good = np.isin(digests, known)
    todo = np.flatnonzero(~good)
    problems = {}

    def check_chunk(indices):
        found = ((int(index), problem(int(index))) for index in indices)
        return [(index, reason) for index, reason in found if reason]

    chunks = [todo[start : start + _CHUNK] for start in range(0, len(todo), _CHUNK)]
    # Threads are as fast as processes: Pillow releases the GIL while it decodes.
    try:
        with (
            threads() as pool,
            warnings.catch_warnings(),
            bar("Checking", root, total=len(todo), unit="img", delay=2) as progress,
        ):
            warnings.filterwarnings("ignore", module=r"PIL\.")  # of huge pictures, and of odd metadata
            for chunk, found in zip(chunks, pool.map(check_chunk, chunks), strict=True):
                good[chunk] = True
                good[[index for index, _ in found]] = False
                problems.update(found)
                progress.update(len(chunk))
    finally:
        # Also after Ctrl-C or with broken images: known good images need not be decoded again.
        fresh = np.unique(digests[good & (digests != 0)])
        if not np.array_equal(fresh, known):
            _write_cache(cache, fresh)
    return good, problems


def _cache_file(root):
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return cache_folder() / f"checked-images-{name}.npy"


def _read_cache(path):
    try:
        with open(path, "rb") as file:
            known = read_array(file)
    except (OSError, Damaged):  # no cache yet, or not one of ours: check everything
        return np.empty(0, np.uint64)
    return known[known != 0] if known.dtype == np.uint64 and known.ndim == 1 else np.empty(0, np.uint64)


def _write_cache(path, digests):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            np.save(temporary, digests)
    except OSError as error:
        # Not fatal: the images are good, they will only be checked again next time.
        announce("%s: cannot note which images are good (%s)", printable(str(path)), error.strerror)
