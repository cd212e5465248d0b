"""Checks that labels and class names agree between a model, its data, and an earlier run."""

import collections
import itertools
import os

import numpy as np

from mixprec.base.bounds import MANY
from mixprec.base.files import read, write_text
from mixprec.base.messages import counted
from mixprec.data.data_error import DataError, and_more, printable


def label_problem(label):
    """Returns the fault of a label (int), in one line, or None; the limit is needed as each label below gets a name."""
    return None if 0 <= label < MANY else f"label {label}: must be 0 to {MANY - 1}"


def check_labels(source, classes):
    """Raises :class:`DataError` unless the labels of a source fit a model.

    Class folders and packed shards have names for their classes: their number must equal the model's. Labels of lists
    and foreign shards must be below that number.

    Args:
        source: :class:`~mixprec.data.sources.folders.ImageFiles` or :class:`~mixprec.data.sources.shards.ImageShards`.
        classes (int): Number of classes of the model.
    """
    if source.named:
        if len(source.classes) != classes:
            found = counted(len(source.classes), "class", "classes")
            raise DataError(f"{printable(source.root)}: {found}, but model.classes is {classes}")
        return
    wrong = np.flatnonzero(source.labels >= classes)
    if len(wrong):
        label = source.labels[wrong[0]]
        from_one = "; the smallest label is 1, but they count from 0" if source.labels.min() == 1 else ""
        raise DataError(
            f"{source.where(wrong[0])}: label {label}{and_more(len(wrong))}, but model.classes is {classes}: "
            f"labels are 0 to {classes - 1}{from_one}"
        )


def check_same_classes(train, val):
    """Raises :class:`DataError` if a label means different classes in two sources.

    If both have names for their classes, the names must be the same. A list has none, but its class folders may: if
    each of its folders has one label, and each label one folder, a folder must have the same label in both.
    """
    if train.named and val.named:
        for one, other in ((train, val), (val, train)):
            missing, added = (sorted(set(a) - set(b)) for a, b in itertools.permutations((one.classes, other.classes)))
            if missing:
                instead = f"; {added[0]!r} is not in {printable(one.root)}{and_more(len(added))}" if added else ""
                there = counted(len(other.classes), "class", "classes")
                raise DataError(
                    f"{printable(other.root)}: class folder {missing[0]!r}, which {printable(one.root)} has, is missing"
                    f"{and_more(len(missing))} ({there} against {len(one.classes)}){instead}"
                )
        return
    known, labels = _labels_by_name(train), _labels_by_name(val)
    for name in sorted(known.keys() & labels.keys()):
        if known[name] != labels[name]:
            raise DataError(
                f"{printable(val.root)}: class folder {name!r} has label {labels[name]}, "
                f"but {known[name]} in {printable(train.root)}"
            )


def require_every_class(source, good, skipped):
    """Raises :class:`DataError` if a class loses all of its images when the bad ones are left out.

    Args:
        source: All images, good or bad.
        good (array): bool, (len(source),).
        skipped (tuple): (name, reason) of each bad image, in the order of ``source``.
    """
    lost = np.setdiff1d(source.labels, source.labels[good])
    if len(lost):
        bad = np.flatnonzero(~np.asarray(good))
        of_class = np.flatnonzero(source.labels[bad] == lost[0])
        name, reason = skipped[of_class[0]]
        raise DataError(
            f"{printable(source.root)}: no image is left of class {source.classes[lost[0]]!r}: "
            f"{name}: {reason}{and_more(len(of_class))}"
        )


def write_classes(path, source):
    """Writes the names of a source's classes, a line for each, in the order of the labels; atomically."""
    write_text(path, "".join(f"{printable(name)}\n" for name in source.classes))


def read_classes(path):
    """Returns the list of names in a file of :func:`write_classes`, unchanged, or raises :class:`DataError`."""
    try:
        return read(path, 1 << 28).decode().split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise DataError(f"{printable(path)}: the classes of the earlier run cannot be read ({reason})") from error


def check_classes(path, source):
    """Raises :class:`DataError` unless the file of :func:`write_classes` lists the classes of a source."""
    there = read_classes(path)
    here, root, file = [printable(name) for name in source.classes], printable(source.root), printable(path)
    for label, (old, new) in enumerate(zip(there, here, strict=False)):
        if old != new:
            raise DataError(f"{file}: class {label} is {old!r} there, {new!r} in {root}")
    if len(there) != len(here):
        raise DataError(f"{file}: {counted(len(there), 'class', 'classes')} there, {len(here)} in {root}")


def class_folders(files, labels):
    """Labels of the folders of a list, if they are class folders, with few exceptions.

    They are if every image lies in a folder, there is more than one folder, no two folders have the same majority
    label, and all images except a tenth (or except one image) have the label of their folder. Otherwise, for example
    when all images lie in one folder, folders are unrelated to labels.

    Args:
        files (sequence of str): Paths.
        labels (array): int, (len(files),).

    Returns:
        tuple: ``(label by folder, indices of the images that have another label)``, or ``({}, [])``.
    """
    folders = [os.path.dirname(file) for file in files]
    counts = collections.defaultdict(collections.Counter)
    for folder, label in zip(folders, labels.tolist(), strict=True):
        counts[folder][label] += 1
    label_of = {folder: max(found, key=found.get) for folder, found in counts.items()}
    odd = [index for index, folder in enumerate(folders) if label_of[folder] != labels[index]]
    one_label_each = len(label_of) == len(set(label_of.values())) > 1
    if "" in label_of or not one_label_each or len(odd) > max(1, len(files) // 10):
        return {}, []
    return label_of, odd


def _labels_by_name(source):
    if source.named:
        return {name: label for label, name in enumerate(source.classes)}
    if not hasattr(source, "files"):  # foreign shards
        return {}
    label_of, odd = class_folders(source.files, source.labels)
    return {} if odd else {os.path.basename(folder): label for folder, label in label_of.items()}
