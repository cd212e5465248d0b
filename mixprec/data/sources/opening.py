"""Opens images in class folders, lists and shards."""

import os

from mixprec.base import working_folder
from mixprec.base.messages import beside, encoding_hint
from mixprec.data.data_error import DataError, printable
from mixprec.data.sources.file_list import scan_list
from mixprec.data.sources.folders import is_folder, scan_folders, visible
from mixprec.data.sources.shard_folder import shard_format
from mixprec.data.sources.shards import scan_shards

FORMATS = ("folders", "list", "tfrecord", "webdataset")


def open_images(path, format="auto", root=None, on_error="stop"):
    """Detects the format of ``path`` and scans it.

    Args:
        path (path): Folder of class folders, list, or folder of shards.
        format (str): ``'folders'``, ``'list'``, ``'tfrecord'``, ``'webdataset'``, or ``'auto'``: a file is a list; a
            folder without folders in it, but with files named like shards, has shards; any other has class folders.
        root (path or None): Only for lists: folder that their paths are relative to; None means the folder of the list.
        on_error (str): ``'stop'``, or ``'skip'`` to leave out files that are not intact images.

    Returns:
        ImageFiles or ImageShards: See :mod:`mixprec.data.sources.folders` and :mod:`mixprec.data.sources.shards`.

    Raises:
        DataError: The path does not exist, it has another format, or something in it is bad.

    Example:
        >>> from mixprec.data import open_images
        >>> images = open_images("data/digits/train")  # doctest: +SKIP
        >>> len(images), images.classes[:2]  # doctest: +SKIP
        (1441, ('0', '1'))
    """
    path = working_folder.absolute(path)
    if format not in ("auto", *FORMATS):
        raise DataError(f"format {format!r}: must be one of 'auto', {', '.join(map(repr, FORMATS))}")
    if not os.path.exists(path):
        raise DataError(f"{printable(path)}: no such file or folder{encoding_hint(path) or beside(path)}")
    if format == "auto":
        format = _format(path)
    if root is not None and format != "list":
        raise DataError(f"root {printable(os.fspath(root))}: only for lists, but {printable(path)} is a folder")
    if format == "list":
        return scan_list(path, root, on_error)
    if format == "folders":
        return scan_folders(path, on_error)
    found = shard_format(path)
    if found not in (format, None):
        raise DataError(f"{printable(path)}: the shards in it are of format {found!r}, not {format!r}")
    return scan_shards(path, on_error)


def _format(path):
    if not os.path.isdir(path):
        return "list"
    # First: archives of classes may have been left beside the folders that came out of them.
    if any(is_folder(entry) for entry in visible(path)):
        return "folders"
    return shard_format(path) or "folders"
