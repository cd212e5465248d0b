"""The task ``data``: the images of a config, counted and checked as before training, with examples."""

import numpy as np

from mixprec.app.monitor.work.images_task import described
from mixprec.app.monitor.work.opened import open_config, open_source
from mixprec.app.parts.images import check_sources
from mixprec.data.data_error import DataError

_SKIPPED, _CLASSES, _EXAMPLES, _SIZE = 200, 20, 3, 64


def describe_data(request, progress):
    """Returns the images that a run of a config would find.

    Args:
        request: with ``config`` and ``overrides``.
        progress: called with the share that is done and a text.

    Returns:
        dict: ``train`` and ``val``, each ``None`` where it cannot be opened, or a dict with ``images``, ``classes``
        (lists of name and count), ``skipped`` (lists of name and reason, the first 200) and ``skipped_count``;
        ``problem``, the first thing for which training would not start, as one line, or ``None``; and ``examples``,
        dicts with ``label``, ``class`` and ``images``, of up to 20 classes, from the training images.

    Raises:
        OneLineError: the config is bad. Faults of the images are part of the result.
    """
    config = open_config(request.config, request.overrides)
    sources, problems = {}, []
    for index, (part, text) in enumerate((("train", "training images"), ("val", "validation images"))):
        progress(index / 3, f"checking the {text}")
        try:
            sources[part] = open_source(config, part)
        except DataError as error:
            sources[part] = None
            problems.append(str(error))
    train, val = sources["train"], sources["val"]
    if not problems:
        try:
            check_sources(config, train, val, ranks=1)
        except DataError as error:
            problems.append(str(error))
    progress(2 / 3, "drawing examples")
    return {
        "train": _counted(train),
        "val": _counted(val),
        "problem": problems[0] if problems else None,
        "examples": [] if train is None else _examples(train),
    }


def _counted(source):
    if source is None:
        return None
    counts = np.bincount(source.labels, minlength=len(source.classes))
    return {
        "images": len(source),
        "classes": [list(each) for each in zip(source.classes, counts.tolist(), strict=True)],
        "skipped": [list(each) for each in source.skipped[:_SKIPPED]],
        "skipped_count": len(source.skipped),
    }


def _examples(source):
    examples = []
    for label in range(min(_CLASSES, len(source.classes))):
        indices = np.flatnonzero(source.labels == label)[:_EXAMPLES]
        images = [described(source, index, _SIZE) for index in indices.tolist()]
        examples.append({"label": label, "class": source.classes[label], "images": images})
    return examples
