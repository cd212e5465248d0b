"""The networks and configs that come with mixprec, also in a wheel: links to ``models/`` and ``configs/``."""

import os
import pathlib

_CONFIGS = pathlib.Path(__file__).with_name("configs")


def config_names():
    """Returns the names of the configs that come with mixprec, sorted: ``"resnet50/90ep.yaml"`` and others."""
    return sorted(path.relative_to(_CONFIGS).as_posix() for path in _CONFIGS.rglob("*.yaml"))


def config_path(name, folder=""):
    """Returns the path of a config: the user's own file, or the config that comes with mixprec under this name.

    Args:
        name (str): a path, or one of :func:`config_names`. ``"configs/resnet50/90ep.yaml"`` means the same as
            ``"resnet50/90ep.yaml"``.
        folder (str): folder that a path is relative to; default: the working directory.

    Returns:
        str: ``name`` in ``folder`` if there is such a file, or if there is neither.

    Example:
        >>> from mixprec.recipes import config_path
        >>> config_path("resnet50/90ep.yaml")[-18:]
        'resnet50/90ep.yaml'
    """
    path = os.path.join(folder, name)
    shipped = os.path.join(_CONFIGS, name.removeprefix("configs/"))
    # os.path: an invalid path, or one that is too long, does not exist either.
    return shipped if not os.path.exists(path) and os.path.isfile(shipped) else path
