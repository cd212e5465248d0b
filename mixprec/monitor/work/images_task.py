"""The task ``images``: stored images of a run or of a config, as thumbnails."""

from mixprec.export_run import finished_run
from mixprec.monitor.work.fields import RequestError
from mixprec.monitor.work.opened import check_index, open_config, open_source
from mixprec.monitor.work.thumbnails import thumbnail
from mixprec.recipes.models import MODELS


def show_images(request, progress):
    """Returns thumbnails of some images.

    Args:
        request: with either ``run`` or ``config``, the other being ``None``; ``overrides``; ``indices``; ``set``,
            ``"train"`` or ``"val"``; ``size`` of a thumbnail's longer side.
        progress: called with the share that is done and a text.

    Returns:
        dict: ``images``, a list of dicts with ``index``, ``name``, ``label``, ``class`` and ``png``.

    Raises:
        OneLineError: there is no such run, config or image.
    """
    if (request.run is None) == (request.config is None):
        raise RequestError("images: 'run' and 'config' are both given, or neither is; wanted: one of them")
    if request.run is not None:
        config = finished_run.open_config(request.run, request.overrides, MODELS)
    else:
        config = open_config(request.config, request.overrides)
    source = open_source(config, request.set)
    for index in request.indices:
        check_index(index, source)
    images = []
    for index in request.indices:
        images.append(described(source, index, request.size))
        progress(len(images) / len(request.indices), f"{len(images)} of {len(request.indices)} images")
    return {"images": images}


def described(source, index, size):
    """Returns one image of a source as a dict; see :func:`show_images`."""
    label = int(source.labels[index])
    return {
        "index": int(index),
        "name": source.name(index),
        "label": label,
        "class": source.classes[label],
        "png": thumbnail(source, index, size),
    }
