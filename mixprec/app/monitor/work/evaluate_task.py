"""The task ``evaluate``: a run's network on all of its validation images, in float32 on the CPU."""

import json
import os

import numpy as np

from mixprec.app.finished import json_lines
from mixprec.app.finished.check import BATCH, in_float32
from mixprec.app.finished.finished_run import open_run
from mixprec.app.finished.predictions import Predictions
from mixprec.app.finished.validation_images import ValidationImages
from mixprec.app.monitor.work.opened import weights_of
from mixprec.base.files import write_text
from mixprec.recipes.models import MODELS


def evaluate(request, progress):
    """Evaluates a run, writes ``evaluation-<weights>.json`` into its folder, and returns the same.

    Args:
        request: with ``run``, a results folder; ``weights``, the name of a file in it or ``None``; ``overrides``.
        progress: called with the share that is done and a text.

    Returns:
        dict: ``file``, ``weights`` (names of files), ``classes`` (their names), and those of
        :meth:`mixprec.app.finished.predictions.Predictions.tables`.

    Raises:
        OneLineError: the folder holds no run, or its weights or images are not there or damaged.
    """
    run = open_run(request.run, weights_of(request.run, request.weights), request.overrides, MODELS)
    images = ValidationImages(run.val, run.preprocessing, np.arange(len(run.val)), run.config.data.threads)
    predictions = Predictions(len(images), run.config.model.classes)
    compute, done = in_float32(run.network), 0
    for pixels, labels in images.batches(BATCH):
        predictions.add(compute(images.normalize(pixels)), labels)
        done += len(labels)
        progress(done / len(images), f"{done} of {len(images)} images")
    weights = os.path.basename(run.weights)
    names = run.val.classes + tuple(map(str, range(len(run.val.classes), run.config.model.classes)))  # of a list
    result = json_lines.clean(
        {
            "file": f"evaluation-{os.path.splitext(weights)[0]}.json",
            "weights": weights,
            "classes": list(names),
            **predictions.tables(run.val.name),
        }
    )
    write_text(os.path.join(request.run, result["file"]), f"{json.dumps(result)}\n")
    return result
