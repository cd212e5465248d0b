"""The task ``evaluate``: a run's network on all of its validation images, in float32 on the CPU."""

import json
import os

import numpy as np

from mixprec.app.finished import predictions
from mixprec.app.finished.check import in_float32
from mixprec.app.finished.finished_run import open_run
from mixprec.app.monitor.work.opened import weights_of
from mixprec.base.files import write_text
from mixprec.recipes.models import MODELS


def evaluate(request, progress):
    """Evaluates a run, writes ``evaluation-<weights>.json`` into its folder, and returns its contents.

    Args:
        request: with ``run``, a results folder; ``weights``, the name of a file in it or ``None``; ``overrides``.
        progress: called with the share that is done and a text.

    Returns:
        dict: ``file``, its name, and the keys of :func:`mixprec.app.finished.predictions.evaluate`.

    Raises:
        OneLineError: the folder holds no run, or its weights or images are not there or damaged.
    """
    run = open_run(request.run, weights_of(request.run, request.weights), request.overrides, MODELS)
    images, done = len(run.val), 0

    def add(count):
        nonlocal done
        done += count
        progress(done / images, f"{done} of {images} images")

    found = predictions.evaluate(run, np.arange(images), in_float32(run.network), add)
    result = {"file": f"evaluation-{os.path.splitext(found['weights'])[0]}.json", **found}
    write_text(os.path.join(request.run, result["file"]), f"{json.dumps(result)}\n")
    return result
