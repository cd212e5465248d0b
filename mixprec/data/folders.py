"""Image folders in ImageNet's layout: ``root/<class>/<image>``, every image checked once."""

import dataclasses
import functools
import hashlib
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from mixprec.files import replacing

# What both Pillow and DALI's CPU decoders read.
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "JPEG2000", "PPM")

# Part of every entry of the cache: raise it when the check becomes stricter.
_CHECK_VERSION = 1

_CHUNK = 64


class DataError(ValueError):
    """The data, or how they are to be read, is not usable; the message is one line that names the culprit."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImageFolder:
    """The images of one folder tree.

    Attributes:
        root (str): Absolute path of the folder that holds the class folders.
        classes (tuple of str): Names of the class folders, sorted; the index is the label.
        files (tuple of str): Paths relative to ``root``, sorted by class, then by name.
        labels (numpy.ndarray): int32, shape (len(files),).
    """

    root: str
    classes: tuple
    files: tuple
    labels: np.ndarray

    def __len__(self):
        return len(self.files)

    def paths(self):
        """Returns the list of absolute paths, in the order of ``files``."""
        return [os.path.join(self.root, file) for file in self.files]

    @functools.cached_property
    def fingerprint(self):
        """SHA-256 (hex) of the class names, relative paths and labels; it does not depend on where ``root`` is."""
        digest = hashlib.sha256()
        for name in (*self.classes, "", *self.files):
            digest.update(os.fsencode(name) + b"\0")
        digest.update(self.labels.astype("<i4").tobytes())
        return digest.hexdigest()


def scan_folders(root):
    """Lists the images under ``root`` and decodes each of them once, completely.

    Hidden files and folders, and files that lie beside the class folders, are left out. A file that has been found
    good is not read again as long as its path, size and modification time stay the same: the cache lies in
    ``$XDG_CACHE_HOME/mixprec`` (``~/.cache/mixprec``), 8 bytes an image.

    Args:
        root (path): Folder of class folders.

    Returns:
        ImageFolder: What was found.

    Raises:
        DataError: ``root`` or a class folder is missing, empty or unreadable, or a file is not an intact image.
    """
    root = os.path.abspath(root)
    classes = tuple(entry.name for entry in _visible(root) if entry.is_dir())
    if not classes:
        raise DataError(f"{root}: no class folders; images must lie in {root}/<class>/")
    files, labels, digests = [], [], []
    for label, name in enumerate(classes):
        entries = _visible(os.path.join(root, name))
        if not entries:
            raise DataError(f"{root}/{name}: no images in this class folder")
        for entry in entries:
            if entry.is_dir():
                raise DataError(f"{entry.path}: a folder inside a class folder; images must lie in {root}/<class>/")
            files.append(f"{name}/{entry.name}")
            labels.append(label)
            digests.append(_digest(entry))
    images = ImageFolder(root, classes, tuple(files), np.array(labels, np.int32))
    _check(images, np.array(digests, np.uint64))
    return images


def check_same_classes(train, val):
    """Raises :class:`DataError` if the class names of two :class:`ImageFolder` differ: labels would not match."""
    for one, other in ((train, val), (val, train)):
        missing = sorted(set(one.classes) - set(other.classes))
        if missing:
            raise DataError(
                f"{other.root}: class folder {missing[0]!r}, which {one.root} has, is missing"
                f"{_and_more(len(missing))} ({len(other.classes)} classes against {len(one.classes)})"
            )


def image_problem(path):
    """Decodes one image completely and returns what is wrong with it in one line, or None."""
    try:
        path.encode()
        with Image.open(path, formats=FORMATS) as image:
            image.load()
    except Image.UnidentifiedImageError:
        if os.path.getsize(path) == 0:
            return "the file is empty"
        return f"not an image in a known format ({', '.join(FORMATS)})"
    except UnicodeEncodeError:
        return "the file name is not valid UTF-8"
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error... for broken images
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return reason.splitlines()[0]
    return None


def _visible(folder):
    """Entries of a folder that are not hidden, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder}: cannot be read as a folder of images ({error.strerror})") from error


def _and_more(count):
    return f" (and {count - 1} more)" if count > 1 else ""


def _digest(entry):
    """64 bits that change when the file's path, size or modification time does."""
    try:
        stat = entry.stat()
    except OSError as error:
        raise DataError(f"{entry.path}: {error.strerror}") from error
    key = f"{_CHECK_VERSION}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode() + os.fsencode(entry.path)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def _check(images, digests):
    """Decodes the images whose digest is not in the cache, on all cores, and adds the good ones to the cache."""
    cache = _cache_file(images.root)
    known = _read_cache(cache)
    good = np.isin(digests, known)
    todo = np.flatnonzero(~good)
    problems = {}

    def check_chunk(indices):
        found = ((index, image_problem(os.path.join(images.root, images.files[index]))) for index in indices)
        return [(index, problem) for index, problem in found if problem]

    chunks = [todo[start : start + _CHUNK] for start in range(0, len(todo), _CHUNK)]
    # Threads suffice: Pillow releases the GIL while it decodes.
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        with tqdm(
            total=len(todo), desc=f"Checking {images.root}", unit="img", delay=2, leave=False, disable=None
        ) as bar:
            for chunk, found in zip(chunks, pool.map(check_chunk, chunks), strict=True):
                good[chunk] = True
                good[[index for index, _ in found]] = False
                problems.update(found)
                bar.update(len(chunk))
    finally:
        pool.shutdown(cancel_futures=True)
        # Also after Ctrl-C or with broken images: what is known to be good need not be decoded again.
        fresh = np.sort(digests[good])
        if not np.array_equal(fresh, known):
            _write_cache(cache, fresh)
    if problems:
        first = min(problems)
        raise DataError(f"{images.root}/{images.files[first]}: {problems[first]}{_and_more(len(problems))}")


def _cache_file(root):
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return Path(home) / "mixprec" / f"checked-images-{name}.npy"


def _read_cache(path):
    try:
        known = np.load(path)
    except (OSError, ValueError, EOFError):  # no cache yet, or not one of ours: check everything
        return np.empty(0, np.uint64)
    return known if known.dtype == np.uint64 else np.empty(0, np.uint64)


def _write_cache(path, digests):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            np.save(temporary, digests)
    except OSError as error:
        # Not fatal: the images are good, they will only be checked again next time.
        warnings.warn(f"{path}: cannot note which images are good ({error.strerror})", stacklevel=4)
