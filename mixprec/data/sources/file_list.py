"""Lists of images as in Chainer's ImageNet example: ``path label`` in each line of a text file."""

import io
import os
import re

import numpy as np

from mixprec.base import working_folder
from mixprec.base.files import open_regular
from mixprec.base.messages import encoding_hint
from mixprec.data.data_error import DataError, and_more, file_errors, printable
from mixprec.data.sources.classes import class_folders, label_problem
from mixprec.data.sources.folders import ImageFiles, check_files, with_sizes

_LONGEST = 8192  # characters of a line: twice as many as a path may have


def scan_list(path, root=None, on_error="stop"):
    """Reads a list and decodes each image once, completely (:func:`mixprec.data.sources.scan.check`).

    The label is the last word of a line, and all before it the path, in which there may be spaces. Empty lines are
    left out. An image may be listed more than once, but with one label. The classes are the labels, as text: 0 up to
    the largest.

    Args:
        path (path): The list, UTF-8.
        root (path or None): The folder that its paths are relative to; None means that of the list.
        on_error (str): ``'stop'``, or ``'skip'`` to leave out what is not an intact image.

    Returns:
        ImageFiles: The images in the order of the list.

    Raises:
        DataError: The list cannot be read or is empty, a line is not ``path label``, an image has two labels, a line
            disagrees with the class folders (:func:`mixprec.data.sources.classes.class_folders`), or a file is not an
            intact image, or, with ``on_error='skip'``, no image of a class is.
    """
    path = working_folder.absolute(path)
    folder = os.path.dirname(path) if root is None else working_folder.absolute(root)
    files, labels, numbers = _read(path)
    classes = tuple(map(str, range(labels.max() + 1)))
    images = ImageFiles(path, classes, files, labels, folder=folder, line_numbers=numbers)
    _check_one_label(images)
    _check_folders(images)
    images, digests = with_sizes(images)
    if not digests.any():
        name = images.name(0)
        raise DataError(
            f"{images.where(0)}: {name}: no such file, nor any other of the list; its paths are looked for in "
            f"{printable(images.folder)}, root says where else{encoding_hint(name)}"
        )
    return check_files(images, digests, on_error)


def _read(path):
    """(paths, labels, numbers of the lines)."""
    files, labels, numbers = [], [], []
    with file_errors(path, "cannot be read as a list of images"), open_regular(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape")
        # A line has an end: what has none may be of any size.
        lines = iter(lambda: text.readline(_LONGEST + 1), "")
        for number, line in enumerate(lines, start=1):
            if len(line) > _LONGEST:
                raise DataError(f"{printable(path)}:{number}: more than {_LONGEST} characters in a line")
            words = line.strip().rsplit(None, 1)
            if not words:
                continue
            if len(words) != 2 or not re.fullmatch(r"-?[0-9]{1,99}", words[1]):
                found = f"; its label must be an integer; found {_quoted(words[1])}" if len(words) == 2 else ""
                raise DataError(f"{printable(path)}:{number}: {_quoted(line)}: a line must be 'path label'{found}")
            name, label = words[0], int(words[1])
            if problem := label_problem(label):
                raise DataError(f"{printable(path)}:{number}: {problem}")
            files.append(name)
            labels.append(label)
            numbers.append(number)
    if not files:
        raise DataError(f"{printable(path)}: no images; each line must be 'path label'")
    return tuple(files), np.array(labels, np.int32), np.array(numbers, np.int32)


def _quoted(line):
    text = printable(line.strip())
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _check_one_label(images):
    first = {}
    for index, file in enumerate(images.files):
        earlier = first.setdefault(os.path.normpath(file), index)
        if images.labels[earlier] != images.labels[index]:
            raise DataError(
                f"{images.where(index)}: label {images.labels[index]} for {printable(file)}, which has label "
                f"{images.labels[earlier]} in line {images.line_numbers[earlier]}"
            )


def _check_folders(images):
    label_of, odd = class_folders(images.files, images.labels)
    if odd:
        file = images.files[odd[0]]
        folder = os.path.dirname(file)
        in_folder = (index for index, other in enumerate(images.files) if os.path.dirname(other) == folder)
        other = next(index for index in in_folder if images.labels[index] == label_of[folder])
        raise DataError(
            f"{images.where(odd[0])}: label {images.labels[odd[0]]} for {printable(file)}{and_more(len(odd))}, but its "
            f"folder has label {label_of[folder]}, as in line {images.line_numbers[other]}"
        )
