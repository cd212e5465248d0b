"""Opens the configs, weights and sources of images that a request names."""

import os
import re

from mixprec.app import config as configs
from mixprec.app.finished.finished_run import WEIGHTS
from mixprec.app.monitor.work.fields import RequestError
from mixprec.base.messages import printable
from mixprec.data.data_error import DataError
from mixprec.data.sources.opening import open_images
from mixprec.recipes import config_path
from mixprec.recipes.models import MODELS
from mixprec.training import snapshots


def open_config(path, overrides):
    """Returns the :class:`mixprec.app.config.Config` of a file, or a config that comes with mixprec."""
    return configs.load(config_path(path), overrides, choices={"model.arch": sorted(MODELS)})


def weights_of(folder, name):
    """Returns the path of a file of weights in a results folder; ``None`` if there is none, an error on opening.

    Args:
        folder: path of the results folder.
        name: name of the file; ``None`` means ``model.npz``, or the newest snapshot of an unfinished run.

    Raises:
        RequestError: the folder has no .npz file of this name.
    """
    if name is not None:
        if os.path.basename(name) != name or not name.endswith(".npz"):
            raise RequestError(f"'weights' is {name}; wanted: the name of a .npz file in {folder}")
        return os.path.join(folder, name)
    path = os.path.join(folder, WEIGHTS)
    return path if os.path.exists(path) else snapshots.newest(folder)


def open_source(config, part):
    """Returns the source of the ``"train"`` or ``"val"`` images of a config.

    Raises:
        DataError: there are none, or one is bad; one line.
    """
    data = config.data
    path = getattr(data, part)
    if data.format == "synthetic":
        raise DataError("data.format is synthetic: random numbers replace images, and there are none to show")
    if path is None:
        raise DataError(f"data.{part} is null; wanted: the path of the images")
    if not os.path.exists(path):
        raise DataError(f"{path}: no such file or folder; data.{part} says where the images are")
    try:
        return open_images(path, data.format, data.root, data.on_error)
    except DataError as error:
        if os.path.isdir(path):
            raise
        # It quotes a line of a list, and the config of a run may name any file: a browser must not see that.
        where = re.match(re.escape(printable(os.path.abspath(path))) + r"(:\d+)?", str(error))
        shown = where[0] if where else printable(path)
        raise DataError(f"{shown}: not a valid list of images; training reports the fault") from None


def check_index(index, source):
    """Raises :class:`RequestError` unless a source has an image of this index."""
    if index >= len(source):
        raise RequestError(f"{source.root}: no image {index}; its {len(source)} images count from 0")
