"""A results folder of the training command, opened for its network and its images."""

import dataclasses
import glob
import os

import numpy as np

from mixprec.app import config as configs
from mixprec.app.parts.networks import find, make
from mixprec.base.announcements import announce
from mixprec.base.messages import OneLineError, beside, encoding_hint, hint, one_line
from mixprec.data.sources.classes import check_classes, check_labels, read_classes
from mixprec.data.sources.opening import open_images
from mixprec.export.preprocessing import Preprocessing
from mixprec.export.weight_files import WeightFile

WEIGHTS = "model.npz"
CLASSES = "classes.txt"
_CONFIG = "config.yaml"


class RunError(OneLineError):
    """A results folder that cannot be exported; the message is one line and names what is wrong."""


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A run, with its weights.

    Attributes:
        config: :class:`mixprec.app.config.Config`.
        network: plain Chainer link on the CPU, from images (N, 3, H, W) to logits, in float32.
        weights: path of their file.
        val: validation images, a source.
        preprocessing: :class:`mixprec.export.preprocessing.Preprocessing`.
    """

    config: configs.Config
    network: object
    weights: str
    val: object
    preprocessing: Preprocessing


def newest_run(folder):
    """Returns a results folder: the newest one in a folder of them, or in its folders; otherwise ``folder`` itself."""
    if os.path.isfile(os.path.join(folder, _CONFIG)):
        return folder
    below = (os.path.join(glob.escape(folder), pattern, _CONFIG) for pattern in ("*", "*/*"))
    found = [file for pattern in below for file in glob.glob(pattern)]
    if not found:
        return folder
    newest = os.path.dirname(max(found, key=os.path.getmtime))
    announce("%s: the newest run in it is %s", one_line(folder), one_line(newest))
    return newest


def open_config(folder, overrides, networks):
    """Returns the :class:`mixprec.app.config.Config` of a results folder.

    Args:
        folder: as for :func:`open_run`.
        overrides: as for :func:`open_run`.
        networks: as for :func:`open_run`.

    Raises:
        OneLineError: the folder holds no run.
    """
    path = os.path.join(folder, _CONFIG)
    if not os.path.isfile(path):
        what = f"no {_CONFIG} in it" if os.path.isdir(folder) else "no such folder"
        near = beside(folder)
        if os.path.isfile(folder):
            what, near = "not a folder", hint(os.path.dirname(folder) or None)
        raise RunError(f"{folder}: {what}; wanted: a results folder of mixprec train, or a folder of them{near}")
    return configs.load(path, overrides, choices={"model.arch": sorted(networks)})


def open_network(folder, weights, overrides, networks):
    """Opens the network of a results folder; the images may be anywhere, or nowhere.

    Args:
        folder: as for :func:`open_run`.
        weights: as for :func:`open_run`.
        overrides: as for :func:`open_run`.
        networks: as for :func:`open_run`.

    Returns:
        ``(config, network, weights)``: :class:`mixprec.app.config.Config`, a plain Chainer link on the CPU in float32,
        and the path of the file of its weights.

    Raises:
        OneLineError: the folder holds no run, or one without weights.
    """
    config = open_config(folder, overrides, networks)
    if weights is None:
        weights = os.path.join(folder, WEIGHTS)
        if not os.path.exists(weights):
            snapshots = [name for name in os.listdir(folder) if name.startswith("snapshot_")]
            newest = max(snapshots, key=lambda name: (len(name), name), default=None)  # iter_1000 is after iter_900
            remedy = f"; --weights {os.path.join(folder, newest)} takes a snapshot" if newest else ""
            raise RunError(f"{folder}: no {WEIGHTS} in it, as the run has not come to its end{remedy}")
    network = make(config, find(config.model, networks), {})
    WeightFile(weights).load_into(network)
    return config, network, weights


def open_run(folder, weights, overrides, networks):
    """Opens a results folder.

    Args:
        folder: its path.
        weights: file of weights, ``None`` for ``model.npz`` of the folder.
        overrides: list of ``"section.key=value"``, as for :func:`mixprec.app.config.load`: where the images are now.
        networks: the networks that ``model.arch`` may name, beside import paths: a dict to callables that take
            the number of classes.

    Raises:
        OneLineError: the folder holds no run, or one without weights; the images are not there, or of other classes.
    """
    config, network, weights = open_network(folder, weights, overrides, networks)
    if config.data.format == "synthetic":
        path = os.path.join(folder, _CONFIG)
        raise RunError(f"{path}: data.format is synthetic: there are no images to check the network on")
    val = open_source(config, "val")
    classes = os.path.join(folder, CLASSES)
    if os.path.exists(classes):
        check_classes(classes, val)
    return FinishedRun(config, network, weights, val, preprocessing_of(config.data, val.classes))


def open_source(config, name):
    """Opens images of a run.

    Args:
        config: :class:`mixprec.app.config.Config`.
        name: ``"train"`` or ``"val"``.

    Returns:
        A source, see :func:`mixprec.data.sources.opening.open_images`.

    Raises:
        OneLineError: the images are not there, or of other classes.
    """
    data = config.data
    path = getattr(data, name)
    if not os.path.exists(path):
        where = f"--set data.{name}=... says where the images are{encoding_hint(path)}"
        raise RunError(f"{path}: no such file or folder; {where}")
    source = open_images(path, data.format, data.root, data.on_error)
    check_labels(source, config.model.classes)
    return source


def class_names(folder, count):
    """Returns the names of the classes of a results folder; their numbers, of a run whose images have no names."""
    path = os.path.join(folder, CLASSES)
    names = read_classes(path) if os.path.exists(path) else []
    return names if len(names) == count else [str(label) for label in range(count)]


def preprocessing_of(data, classes):
    """Returns the :class:`~mixprec.export.preprocessing.Preprocessing` of validation.

    Args:
        data: the section of a config, :class:`mixprec.app.config.data.Data`.
        classes: names of the classes.
    """
    return Preprocessing(
        resize=data.resize,
        size=data.val_size or data.size,
        mean=tuple(data.mean),
        std=tuple(data.std),
        classes=tuple(classes),
    )


def some(source, count):
    """Returns the indices of ``count`` images of a source, drawn at random, or of all: sorted."""
    if count is None or count >= len(source):
        return np.arange(len(source))
    return np.sort(np.random.RandomState(0).permutation(len(source))[:count])
