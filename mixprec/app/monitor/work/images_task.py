"""The task ``images``: stored validation images of a run, as thumbnails."""

from mixprec.app.finished import finished_run
from mixprec.app.monitor.work.opened import check_index, open_source
from mixprec.app.monitor.work.thumbnails import thumbnail
from mixprec.recipes.models import MODELS

_SIZE = 96


def show_images(request, progress):
    """Returns thumbnails of some images.

    Args:
        request: attributes ``run``, ``overrides`` and ``indices``.
        progress: called with the share that is done and a text.

    Returns:
        dict: ``images``, a list of dicts with ``index``, ``name``, ``label``, ``class`` and ``png``.

    Raises:
        OneLineError: there is no such run or image.
    """
    source = open_source(finished_run.open_config(request.run, request.overrides, MODELS), "val")
    for index in request.indices:
        check_index(index, source)
    images = []
    for index in request.indices:
        images.append(described(source, index, _SIZE))
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
