"""Evaluation in which every image has the same weight.

The trainer calls :class:`Evaluator` after each epoch.
"""

import contextlib

import numpy as np
from chainer import no_backprop_mode, reporter
from chainer.training import extensions

from mixprec.training.label_accuracy import valid_images
from mixprec.training.log_report import DictSummary, Summary


class Evaluator(extensions.Evaluator):
    """Chainer's evaluator, with the mean taken over images instead of batches.

    Chainer's own gives the last, smaller batch the weight of a full one. Here the weight of a batch is the number of
    its labels that are not -1, so that padding does not count, and sums are in float64. Values that are reported
    without a link get the evaluator's name, too, and do not replace training's values. Values from a GPU are summed on
    the host, which waits for them once, at the end.

    Args:
        args: as for Chainer's evaluator: an iterator with ``reset``, the model, a ``converter`` to images and labels, a
            ``device``; an ``eval_func`` such as :func:`mixprec.graph_capture.capture_evaluation`, which is called in
            place of the model.
        kwargs: as for Chainer's evaluator.
        weights: function that returns a context manager in which the model has the weights to be evaluated.
        gather: function from a value to the list of the values of all ranks. Ranks evaluate different images, and all
            get the mean over all images.
    """

    default_name = "validation"

    def __init__(self, *args, weights=contextlib.nullcontext, gather=lambda value: [value], **kwargs):
        super().__init__(*args, **kwargs)
        self._weights = weights
        self._gather = gather

    def evaluate(self):
        """Runs over the iterator once and returns the means of the values that the model reports."""
        iterator = self.get_iterator("main")
        iterator.reset()
        summary = DictSummary(self._gather, _Mean)
        with self._weights():
            for batch in iterator:
                arrays = self.converter(batch, self.device)
                images = valid_images(arrays)
                summary.add({key: (value, images) for key, value in self._observe(arrays).items()})
        of_links = tuple(f"{name}/" for name in reporter.get_current_reporter()._observer_names.values())
        prefix = f"{self.name}/" if self.name else ""
        return {
            name if name.startswith(of_links) else f"{prefix}{name}": mean
            for name, mean in summary.compute_mean().items()
        }

    def _observe(self, arrays):
        observation = {}
        with reporter.report_scope(observation), no_backprop_mode():
            (self.eval_func or self.get_target("main"))(*arrays)
        return observation


class _Mean(Summary):
    def __init__(self):
        super().__init__()
        self._x = self._x2 = np.float64(0)  # sums over 50,000 images, in float64
