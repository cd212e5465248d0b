"""Evaluates a run: loss and prediction of each validation image, and the summary tables."""

import os

import numpy as np

from mixprec.app.finished.check import BATCH
from mixprec.app.finished.json_lines import clean
from mixprec.app.finished.validation_images import ValidationImages
from mixprec.training.label_accuracy import TOP

_NONE = -1  # prediction of logits with NaN, which is not counted as any class
_MATRIX, _PAIRS, _WORST = 50, 100, 200  # classes of a whole matrix, and lengths of the two lists


def evaluate(run, indices, compute, progress):
    """Evaluates a network on validation images.

    Args:
        run: :class:`~mixprec.app.finished.finished_run.FinishedRun`.
        indices: indices of the validation images, an array of integers.
        compute: function from normalized images to logits, see :func:`mixprec.app.finished.check.in_float32`.
        progress: called with the number of images after each batch.

    Returns:
        dict: values of JSON: ``weights``, the name of their file; ``classes``, their names; and the keys of
        :meth:`Predictions.tables`.

    Raises:
        DataError: an image cannot be read; the message names it.
    """
    images = ValidationImages(run.val, run.preprocessing, indices, run.config.data.threads)
    predictions = Predictions(indices, run.config.model.classes)
    for pixels, labels in images.batches(BATCH):
        predictions.add(compute(images.normalize(pixels)), labels)
        progress(len(labels))
    numbered = range(len(run.val.classes), run.config.model.classes)  # a list may lack images of the last classes
    names = [*run.val.classes, *map(str, numbered)]
    return clean({"weights": os.path.basename(run.weights), "classes": names, **predictions.tables(run.val.name)})


class Predictions:
    """Loss, prediction and share of the label of each image, in the order of the images.

    Args:
        indices: indices of the images in their source, an array of integers.
        classes (int): number of classes.
    """

    def __init__(self, indices, classes):
        images = len(indices)
        self._indices, self._classes, self._done = indices, classes, 0
        self._labels, self._found = np.zeros(images, np.int64), np.zeros(images, np.int64)
        self._losses, self._shares = np.zeros(images), np.zeros(images)
        self._in_top = np.zeros(images, bool)

    def add(self, logits, labels):
        """Adds the next images.

        Args:
            logits: float32 (n, classes).
            labels: integers (n,), 0 to classes - 1.
        """
        rows = slice(self._done, self._done + len(labels))
        own = logits[np.arange(len(labels)), labels]
        with np.errstate(all="ignore"):  # for a network whose training diverged, which has NaN in the tables
            shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
            losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
            self._shares[rows] = np.exp(-losses)
            # As mixprec.training.label_accuracy: logits equal to the label's logit count as larger.
            self._in_top[rows] = (~(logits < own[:, None])).sum(1) <= TOP
        found = np.where(np.isnan(logits).any(1), _NONE, logits.argmax(1))
        self._labels[rows], self._found[rows], self._losses[rows] = labels, found, losses
        self._done = rows.stop

    def tables(self, name):
        """Returns the tables of all images.

        Args:
            name (callable): function from the index of an image to its name.

        Returns:
            dict: values of JSON: ``images``, their number; ``loss``, the mean; ``top1`` and ``top5``, shares of the
            images; ``confusion``, a row for each class and a column for each prediction; ``confused``, lists of class,
            prediction and number of images, the most frequent first; ``per_class``, lists of images, correct ones, and
            mean loss; ``worst``, lists of index, name, class, prediction, loss and share of the class, the largest loss
            first; the prediction is -1 for logits with NaN. ``top5`` and ``confusion`` are ``None`` where there are too
            few or too many classes.
        """
        labels, found, losses, classes = self._labels, self._found, self._losses, self._classes
        right = labels == found
        counts = np.bincount(labels, minlength=classes)
        correct = np.bincount(labels[right], minlength=classes)
        sums = np.bincount(labels, losses, minlength=classes)
        per_class = zip(counts.tolist(), correct.tolist(), sums.tolist(), strict=True)
        return {
            "images": len(labels),
            "loss": float(losses.mean()),
            "top1": float(right.mean()),
            "top5": float(self._in_top.mean()) if classes > TOP else None,
            "confusion": self._confusion() if classes <= _MATRIX else None,
            "confused": self._confused(right),
            "per_class": [[images, good, total / images if images else None] for images, good, total in per_class],
            "worst": self._worst(name),
        }

    def _confusion(self):
        pairs = self._labels * self._classes + self._found
        pairs = np.bincount(pairs[self._found != _NONE], minlength=self._classes**2)
        return pairs.reshape(self._classes, self._classes).tolist()

    def _confused(self, right):
        wrong = ~right & (self._found != _NONE)
        pairs, counts = np.unique(self._labels[wrong] * self._classes + self._found[wrong], return_counts=True)
        order = np.argsort(-counts, kind="stable")[:_PAIRS]
        return [[*divmod(int(pairs[index]), self._classes), int(counts[index])] for index in order]

    def _worst(self, name):
        order = np.argsort(-np.nan_to_num(self._losses, nan=np.inf), kind="stable")[:_WORST]
        rows = (self._indices, self._labels, self._found, self._losses, self._shares)
        columns = [each[order].tolist() for each in rows]
        return [[index, name(index), *row] for index, *row in zip(*columns, strict=True)]
