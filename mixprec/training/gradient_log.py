"""The numbers behind the picture of the gradients, as JSON lines.

:class:`mixprec.training.GradientHistogram` adds a line at each call of its trigger.
"""

import json
import os

import numpy as np

from mixprec.base import files
from mixprec.training.gradient_counts import LOWEST

FILE = "gradients.jsonl"


class GradientLog:
    """A file with a line for each :class:`~mixprec.training.gradient_counts.Summary`, a JSON object.

    Lines are appended, as a line may have numbers for hundreds of layers, and the file many lines. When a run is
    resumed, a line that a killed run has half written is dropped, and so are lines of later iterations. Snapshots do
    not include the file: a run that is resumed in another folder starts a new one.

    Args:
        filename: name of the file in the results folder.
    """

    def __init__(self, filename=FILE):
        self._filename = filename
        self._last = -1  # the last iteration with a line

    def go_on(self, folder, iteration):
        """Keeps the lines up to ``iteration``, and drops later lines, and all lines from a damaged one on."""
        path = os.path.join(folder, self._filename)
        content, length = _read(path), 0
        for line in content.splitlines(keepends=True):
            found = _iteration(line)
            if found is None or not self._last < found <= iteration:
                break
            length += len(line)
            self._last = found
        if length < len(content):
            files.write_text(path, content[:length].decode())

    def add(self, trainer, summary):
        """Writes the counts of this iteration, unless it has a line already."""
        if trainer.updater.iteration <= self._last:
            return
        self._last = trainer.updater.iteration
        line = json.dumps(_entry(trainer.updater, summary)) + "\n"
        with open(os.path.join(trainer.out, self._filename), "a", encoding="utf-8") as file:
            file.write(line)


def _entry(updater, summary):
    total = summary.total
    used = np.flatnonzero(total.binades).tolist() or [-LOWEST]  # if all are zero there is no binade, and lowest is 0
    first, binades = used[0], total.binades[used[0] : used[-1] + 1]
    return {
        "iteration": updater.iteration,
        "epoch": float(updater.epoch_detail),
        "loss_scale": float(summary.scale),
        "zeros": total.zeros,
        "not_finite": total.not_finite,
        "lowest": LOWEST + first,
        "binades": binades.tolist() if binades.any() else [],
        "layers": {path: [counts.zeros, *counts.scaled] for path, counts in summary.layers.items()},
    }


def _read(path):
    try:
        with files.open_regular(path) as file:
            return file.read()
    except OSError:
        return b""


def _iteration(line):
    """Returns the iteration of a line; ``None`` if the line is damaged."""
    try:
        entry = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    found = entry.get("iteration") if isinstance(entry, dict) else None
    return found if type(found) is int and line.endswith(b"\n") else None
