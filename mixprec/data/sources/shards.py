"""Images in shards, TFRecord files or WebDataset archives: foreign or made by ``mixprec pack``."""

import dataclasses
import functools
import hashlib
import io
import itertools
import os

import numpy as np

from mixprec.base import working_folder
from mixprec.base.files import cache_folder, open_regular, write_text
from mixprec.data.data_error import DataError, file_errors, printable
from mixprec.data.sources import scan, tfrecord, webdataset
from mixprec.data.sources.classes import require_every_class
from mixprec.data.sources.folders import sha256_of
from mixprec.data.sources.image_check import image_problem
from mixprec.data.sources.progress import bar, threads
from mixprec.data.sources.shard_folder import MANIFEST, read_manifest, shard_format, shard_paths
from mixprec.data.sources.shard_index import cached_index

FORMATS = {"tfrecord": tfrecord, "webdataset": webdataset}


@dataclasses.dataclass(frozen=True, eq=False)
class ImageShards:
    """Images in the shards of one folder.

    Attributes:
        root (str): Absolute path of the folder.
        classes (tuple of str): Names of the classes; the index is the label.
        labels (numpy.ndarray): int32, (N,).
        format (str): ``'tfrecord'`` or ``'webdataset'``.
        shards (tuple of str): Absolute paths of the shards that have an image left, sorted.
        parts (numpy.ndarray): int32, (N,): the index of each image's shard, ascending.
        names (tuple of str): Name of each image in its shard.
        offsets (numpy.ndarray): int64, (N,): first byte of the encoded image in its shard.
        sizes (numpy.ndarray): int64, (N,): its number of bytes.
        lines (tuple of str): The image's line in DALI's index file.
        skipped (tuple of pairs of str): Bad samples that were left out, and the fault of each.
        named (bool): Whether ``classes`` are names from the data, and not merely the labels.
    """

    root: str
    classes: tuple
    labels: np.ndarray
    format: str
    shards: tuple
    parts: np.ndarray
    names: tuple
    offsets: np.ndarray
    sizes: np.ndarray
    lines: tuple
    skipped: tuple = ()
    named: bool = False

    def __len__(self):
        return len(self.labels)

    def name(self, index):
        """Returns ``"<path of the shard>: <name>"`` for messages, in one line."""
        return printable(f"{self.shards[self.parts[index]]}: {self.names[index]}")

    where = name  # of what gives it its label

    def read(self, index):
        """Returns the encoded image, or raises :class:`DataError` that names it."""
        with file_errors(self.name(index)), open_regular(self.shards[self.parts[index]]) as file:
            file.seek(self.offsets[index])
            content = file.read(self.sizes[index])
        if len(content) < self.sizes[index]:
            raise DataError(f"{self.name(index)}: the shard has been truncated since it was scanned")
        return content

    @functools.cached_property
    def fingerprint(self):
        """SHA-256 (hex) of classes, names of shards and samples, and labels; it does not depend on ``root``."""
        digest = hashlib.sha256()
        shards = [os.path.basename(shard) for shard in self.shards]
        for name in (*self.classes, "", *shards, "", *self.names):
            digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(self.parts.astype("<i4").tobytes() + self.labels.astype("<i4").tobytes())
        return digest.hexdigest()

    @functools.cached_property
    def size_fingerprint(self):
        """SHA-256 (hex) of the sizes of the encoded images, like :class:`~mixprec.data.sources.folders.ImageFiles`."""
        return sha256_of(self.sizes)

    def index_files(self):
        """Writes DALI's index files into the cache folder and returns the list of their paths, one for each shard.

        They do not contain samples that are left out. A file is named by its content, so that another process, which
        leaves out other samples, uses other files.

        Raises:
            DataError: The cache folder cannot be written.
        """
        text = FORMATS[self.format].index_text
        bounds = np.searchsorted(self.parts, np.arange(len(self.shards) + 1))
        paths = []
        for start, stop in itertools.pairwise(bounds):
            content = text(self.lines[start:stop])
            path = cache_folder() / f"dali-{hashlib.sha256(content.encode()).hexdigest()[:32]}.idx"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    write_text(path, content)
            except OSError as error:
                raise DataError(
                    f"{path}: DALI's index of a shard cannot be written ({error.strerror}); "
                    "XDG_CACHE_HOME chooses another folder"
                ) from error
            paths.append(str(path))
        return paths


def scan_shards(folder, on_error="stop"):
    """Lists the samples of the shards in a folder, and decodes each once (:func:`~mixprec.data.sources.scan.check`).

    Shards are ``*.tar`` (WebDataset), or ``*.tfrecord`` and names such as ``train-00003-of-00010`` (TFRecord). The
    classes of foreign shards are the labels, as text: 0 up to the largest that was found.

    A folder of ``mixprec pack`` has a manifest: its images were checked when they were packed, and now the
    sizes of its shards are compared; ``--verify`` compares everything.

    Args:
        folder (path): Folder of shards of one set; subfolders are ignored.
        on_error (str): ``'stop'``, or ``'skip'`` to leave out samples that are not an intact image with a label. Damage
            that hides the number of samples, such as a truncated shard, is always an error.

    Returns:
        ImageShards: What was found, sorted by name of the shard; within it, in its order.

    Raises:
        DataError: There is no shard; one is missing, truncated or empty; or a sample is bad, or, with
            ``on_error='skip'``, no image of a class is good.
    """
    root = working_folder.absolute(folder)
    form = shard_format(root)
    manifest = read_manifest(root)
    paths = shard_paths(root, manifest)
    images, problems, digests = _images(root, form, paths, manifest)
    if manifest is not None:
        return images

    def problem(index):
        return problems[index] or sample_problem(images, index)

    good, skipped = scan.check(root, digests, problem, images.name, on_error)
    labelled = images.labels >= 0
    of_labelled = tuple(pair for pair, known in zip(skipped, labelled[~good], strict=True) if known)
    require_every_class(_kept(images, labelled), good[labelled], of_labelled)
    return dataclasses.replace(_kept(images, good), skipped=skipped)


def sample_problem(images, index):
    """Decodes one image, compares the checksum of its record, and returns its fault in one line, or None."""
    try:
        damage = FORMATS[images.format].damage(images.shards[images.parts[index]], images.lines[index])
        return damage or image_problem(io.BytesIO(images.read(index)))
    except OSError as error:
        return error.strerror
    except DataError as error:
        return str(error).removeprefix(f"{images.name(index)}: ")


def _images(root, form, paths, manifest):
    """All samples, their faults as far as the index shows them, and the digests for the check."""
    read = FORMATS[form].read_index

    def index(path):
        with file_errors(path):
            status = os.stat(path)
            return status, cached_index(path, status, read)

    indices, digests, parts = [], [], []
    with threads() as pool:
        listed = bar("Listing", root, pool.map(index, paths), total=len(paths), unit="shard", delay=2)
        for part, (path, (status, found)) in enumerate(zip(paths, listed, strict=True)):
            if not len(found):
                raise DataError(f"{printable(path)}: no samples in this shard")
            indices.append(found)
            parts.append(np.full(len(found), part, np.int32))
            if manifest is None:
                digests += [scan.digest(path, status, str(offset)) for offset in found.offsets]
            elif len(found) != manifest["shards"][os.path.basename(path)]["images"] or any(found.problems):
                raise DataError(f"{printable(path)}: not as it was packed; mixprec pack --verify tells more")

    def all_of(field):
        return [value for found in indices for value in getattr(found, field)]

    labels = np.concatenate([found.labels for found in indices])
    if manifest is not None and labels.max() >= len(manifest["classes"]):
        raise DataError(
            f"{printable(root)}: label {labels.max()}, but {MANIFEST} has {len(manifest['classes'])} classes"
        )
    problems = all_of("problems")
    images = ImageShards(
        root,
        tuple(manifest["classes"]) if manifest else (),
        labels.astype(np.int32),
        form,
        tuple(paths),
        np.concatenate(parts),
        tuple(all_of("names")),
        np.concatenate([found.offsets for found in indices]),
        np.concatenate([found.sizes for found in indices]),
        tuple(all_of("lines")),
        named=bool(manifest and manifest["named"]),
    )
    return images, problems, digests


def _kept(images, good):
    """The samples that are good, and the shards that have one; the classes are their labels."""
    kept = np.flatnonzero(good)
    used, parts = np.unique(images.parts[kept], return_inverse=True)
    labels = images.labels[kept]
    return dataclasses.replace(
        images,
        classes=tuple(map(str, range(labels.max() + 1))),
        labels=labels,
        shards=tuple(images.shards[part] for part in used),
        parts=parts.astype(np.int32),
        names=tuple(images.names[index] for index in kept),
        offsets=images.offsets[kept],
        sizes=images.sizes[kept],
        lines=tuple(images.lines[index] for index in kept),
    )
