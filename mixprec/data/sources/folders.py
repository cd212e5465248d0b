"""Images in separate files, and ImageNet's layout: ``root/<class>/<image>``."""

import contextlib
import dataclasses
import functools
import hashlib
import os

import numpy as np

from mixprec.base import working_folder
from mixprec.base.files import open_regular
from mixprec.data.data_error import DataError, file_errors, printable
from mixprec.data.sources import scan
from mixprec.data.sources.classes import require_every_class
from mixprec.data.sources.image_check import image_problem, is_of_unknown_format
from mixprec.data.sources.progress import bar

# Extensions of images, also of kinds that cannot be read: such a file must be one.
_IMAGES = frozenset(
    (".avif", ".bmp", ".gif", ".heic", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm")
    + (".tif", ".tiff", ".webp")
)
# What systems and people leave beside images; these are not opened.
_NO_IMAGES = frozenset((".csv", ".db", ".html", ".ini", ".json", ".log", ".md", ".txt", ".xml", ".yaml", ".yml"))


@dataclasses.dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images in separate files, and their labels.

    Attributes:
        root (str): Absolute path of the scanned source: the folder of class folders, or the list.
        classes (tuple of str): Names of the classes; the index is the label.
        files (tuple of str): Paths relative to ``folder``.
        labels (numpy.ndarray): int32, shape (len(files),).
        skipped (tuple of pairs of str): Bad images that were left out, and the fault of each.
        folder (str or None): Folder that ``files`` are relative to; None means ``root``.
        line_numbers (numpy.ndarray or None): The line of the list that each image comes from; None for folders.
        sizes (numpy.ndarray or None): int64, (len(files),): bytes of each file; None if unknown.
    """

    root: str
    classes: tuple
    files: tuple
    labels: np.ndarray
    skipped: tuple = ()
    folder: str | None = None
    line_numbers: np.ndarray | None = None
    sizes: np.ndarray | None = None

    def __len__(self):
        return len(self.files)

    @property
    def named(self):
        """Whether ``classes`` are names from the data, and not merely the labels."""
        return self.line_numbers is None

    def path(self, index):
        """Returns the absolute path of an image."""
        return os.path.join(self.folder or self.root, self.files[index])

    def paths(self):
        """Returns the list of absolute paths, in the order of ``files``."""
        return [self.path(index) for index in range(len(self))]

    def name(self, index):
        """Returns the absolute path of an image for messages: in one line, with escapes if necessary."""
        return printable(self.path(index))

    def where(self, index):
        """Returns the origin of an image's label, for messages: its path, or ``"<list>:<line>"``."""
        if self.line_numbers is None:
            return self.name(index)
        return f"{printable(self.root)}:{self.line_numbers[index]}"

    def read(self, index):
        """Returns the bytes of an image's file, or raises :class:`DataError` that names it."""
        with file_errors(self.path(index)), open_regular(self.path(index)) as file:
            return file.read()

    @functools.cached_property
    def fingerprint(self):
        """SHA-256 (hex) of the class names, relative paths and labels; it does not depend on ``root``."""
        digest = hashlib.sha256()
        for name in (*self.classes, "", *self.files):
            digest.update(os.fsencode(name) + b"\0")
        digest.update(self.labels.astype("<i4").tobytes())
        return digest.hexdigest()

    @functools.cached_property
    def size_fingerprint(self):
        """SHA-256 (hex) of the sizes of the files: other images under the same names nearly always differ in size."""
        return None if self.sizes is None else sha256_of(self.sizes)


def sha256_of(numbers):
    """Returns the SHA-256 (hex) of integers, an array."""
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()


def scan_folders(root, on_error="stop"):
    """Lists the images under ``root`` and decodes each of them once (:func:`mixprec.data.sources.scan.check`).

    Left out are hidden files and folders, files beside the class folders, and, as by torchvision's ``ImageFolder``,
    files without an extension of images (``Thumbs.db``, ``notes.txt``, ``README``), unless they hold an image.

    Args:
        root (path): Folder of class folders. Their names, sorted, are the classes.
        on_error (str): ``'stop'``, or ``'skip'`` to leave out files that are not intact images.

    Returns:
        ImageFiles: What was found, sorted by class, then by name.

    Raises:
        DataError: ``root`` or a class folder is missing, empty or unreadable, or a file is not an intact image, or,
            with ``on_error='skip'``, no image of a class is.
    """
    root = working_folder.absolute(root)
    classes = tuple(entry.name for entry in visible(root) if is_folder(entry))
    if not classes:
        raise DataError(f"{printable(root)}: no class folders; images must lie in {printable(root)}/<class>/")
    files, labels = [], []
    for label, name in enumerate(classes):
        entries = [each for each in visible(os.path.join(root, name)) if _is_image(each)]
        if not entries:
            raise DataError(f"{printable(os.path.join(root, name))}: no images in this class folder")
        files += [f"{name}/{entry.name}" for entry in entries]
        labels += [label] * len(entries)
    images, digests = with_sizes(ImageFiles(root, classes, tuple(files), np.array(labels, np.int32)))
    return check_files(images, digests, on_error)


def _is_image(entry):
    """Whether an entry (``os.DirEntry``) is an image by its name, or else may be one."""
    extension = os.path.splitext(entry.name)[1].lower()
    return extension in _IMAGES or (extension not in _NO_IMAGES and not is_of_unknown_format(entry.path))


def with_sizes(images):
    """Reads the status of every file: returns the :class:`ImageFiles` with sizes, and the digests for the check.

    A file that cannot be accessed has a size of -1 and a digest of 0: the check reports the reason.
    """
    digests, sizes = np.zeros(len(images), np.uint64), np.full(len(images), -1, np.int64)
    for index, path in enumerate(bar("Listing", images.root, images.paths(), delay=2)):
        with contextlib.suppress(OSError, ValueError):  # missing, or no path at all
            status = os.stat(path)
            digests[index], sizes[index] = scan.digest(path, status), status.st_size
    return dataclasses.replace(images, sizes=sizes), digests


def check_files(images, digests, on_error):
    """Checks every image, and returns the :class:`ImageFiles` of those that are good.

    Args:
        images (ImageFiles): All of them.
        digests (array): uint64, (len(images),), of :func:`mixprec.data.sources.scan.digest`.
        on_error (str): ``'stop'`` or ``'skip'``.

    Raises:
        DataError: As :func:`mixprec.data.sources.scan.check`, or no image of a class is good.
    """
    good, skipped = scan.check(
        images.root, digests, lambda index: image_problem(images.path(index)), images.name, on_error
    )
    if not skipped:
        return images
    require_every_class(images, good, skipped)
    kept = np.flatnonzero(good)
    return dataclasses.replace(
        images,
        files=tuple(images.files[index] for index in kept),
        labels=images.labels[kept],
        line_numbers=None if images.line_numbers is None else images.line_numbers[kept],
        sizes=images.sizes[kept],
        skipped=skipped,
    )


def visible(folder, content="images"):
    """Returns the entries (``os.DirEntry``) of a folder of ``content`` that are not hidden, sorted by name."""
    with file_errors(folder, f"cannot be read as a folder of {content}"), os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)


def is_folder(entry):
    """Whether an entry (``os.DirEntry``) is a folder or a link to one, or raises :class:`DataError` that names it."""
    with file_errors(entry.path):  # such as of a link to itself
        return entry.is_dir()
