"""What a network says of images with labels: loss and prediction of each, and the tables that follow."""

import numpy as np

from mixprec.training.label_accuracy import TOP

_MATRIX, _PAIRS, _WORST = 50, 100, 200  # classes of a whole matrix, and lengths of the two lists


class Predictions:
    """Loss, prediction and share of the label of each image, in the order of the images.

    Args:
        images (int): number of images.
        classes (int): number of classes.
    """

    def __init__(self, images, classes):
        self._classes, self._done = classes, 0
        self._labels, self._found = np.zeros(images, np.int64), np.zeros(images, np.int64)
        self._losses, self._shares = np.zeros(images), np.zeros(images)
        self._in_top = np.zeros(images, bool)

    def add(self, logits, labels):
        """Takes the next images.

        Args:
            logits: float32 (n, classes).
            labels: integers (n,), 0 to classes - 1.
        """
        rows = slice(self._done, self._done + len(labels))
        own = logits[np.arange(len(labels)), labels]
        with np.errstate(all="ignore"):  # of a network whose training diverged, which has NaN in the tables
            shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
            losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
            self._shares[rows] = np.exp(-losses)
            # As mixprec.training.label_accuracy: logits that equal that of the label count as larger ones.
            self._in_top[rows] = (~(logits < own[:, None])).sum(1) <= TOP
        self._labels[rows], self._found[rows], self._losses[rows] = labels, logits.argmax(1), losses
        self._done = rows.stop

    def tables(self, name):
        """Returns what there is to tell of all images, as values of JSON.

        Args:
            name (callable): from the index of an image to its name.
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
        pairs = np.bincount(self._labels * self._classes + self._found, minlength=self._classes**2)
        return pairs.reshape(self._classes, self._classes).tolist()

    def _confused(self, right):
        pairs, counts = np.unique(self._labels[~right] * self._classes + self._found[~right], return_counts=True)
        order = np.argsort(-counts, kind="stable")[:_PAIRS]
        return [[*divmod(int(pairs[place]), self._classes), int(counts[place])] for place in order]

    def _worst(self, name):
        order = np.argsort(-np.nan_to_num(self._losses, nan=np.inf), kind="stable")[:_WORST]
        columns = [each[order].tolist() for each in (self._labels, self._found, self._losses, self._shares)]
        return [[index, name(index), *row] for index, *row in zip(order.tolist(), *columns, strict=True)]
