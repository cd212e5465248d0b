"""The networks and configs that come with mixprec, also in a wheel: links to ``models/`` and ``configs/``."""

import os
import pathlib

_CONFIGS = pathlib.Path(__file__).with_name("configs")


def config_path(name):
    """Returns the path of a config: the file ``name`` itself, or the one that comes with mixprec under this name.

    Args:
        name (str): a path, relative to the working directory, or relative to ``configs/``, as in
            ``"resnet50/90ep.yaml"``. ``"configs/resnet50/90ep.yaml"`` works too.

    Returns:
        str: ``name`` where there is such a file, or none in either place.

    Example:
        >>> from mixprec.recipes import config_path
        >>> config_path("resnet50/90ep.yaml")[-18:]
        'resnet50/90ep.yaml'
    """
    shipped = _CONFIGS / os.path.relpath(name, "configs") if name.startswith("configs/") else _CONFIGS / name
    return str(shipped) if not os.path.exists(name) and shipped.is_file() else name
