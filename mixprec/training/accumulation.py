"""Gradient accumulation: one optimizer step over several batches, with the activations of one batch at a time.

The updaters wrap the model in :class:`Accumulated` if ``training.accumulation_steps`` is more than 1, or if several
ranks train together.
"""

import contextlib

import chainer
import numpy as np

from mixprec.backends.transfers import on_host
from mixprec.optimizer.counted_losses import CountedLosses
from mixprec.training.label_accuracy import valid_images


class Accumulated:
    """A loss function over several batches, for :meth:`mixprec.MixedPrecisionOptimizer.update` and ``mixprec.capture``.

    ``update(Accumulated(lossfun), batches)`` is a step with the gradient of the mean loss over all images of the
    batches whose labels are not -1, however they are distributed. Values that ``lossfun`` reports are reported once, as
    means over these images. Running statistics are updated once for each batch.

    With ChainerMN, ``create_multi_node_optimizer(MixedPrecisionOptimizer(...), communicator).update(...)`` accepts it
    as well. Gradients are then sent once, after the last batch, and the mean over processes is the mean over all images
    if each process has the same number of images. The first update only sends the weights of the first process to all.

    Args:
        lossfun: loss function of one batch: a mean over its images.
    """

    def __init__(self, lossfun):
        self._lossfun = lossfun

    def __call__(self, batches, images=None):
        """Returns an iterator of the weighted loss of each batch.

        The graph of a loss is freed before the next one is computed.

        Args:
            batches: list of tuples, the arguments of ``lossfun``: images, and labels.
            images: with several ranks, the mean over ranks of the number of images that count, a float32 array of shape
                (). The means over ranks of losses and of reported values are then means over all images.
        """
        return CountedLosses(self._losses(batches, images), len(batches))

    def _losses(self, batches, images):
        means = {}
        counts, total = _counts(batches)
        for batch, count in zip(batches, counts, strict=True):
            yield self._loss(batch, _share(count, total if images is None else images), means)
        chainer.report(means)

    def _loss(self, batch, weight, means):
        observation = {}
        with _reporting_to(observation):
            loss = self._lossfun(*batch)
        for name, value in observation.items():
            value = chainer.as_array(value) if isinstance(value, chainer.Variable) else value
            if getattr(value, "ndim", 0) == 0:
                means[name] = means.get(name, 0) + weight * value
        return loss * weight


def _counts(batches):
    """Returns the number of images that count in each batch, and their sum, at least 1, on the labels' device."""
    counts = list(map(valid_images, batches))
    total = sum(counts)
    return counts, max(total, 1) if on_host(total) else chainer.backend.get_array_module(total).maximum(total, 1)


def _share(count, total):
    """Returns ``count / total`` in float32."""
    return np.float32(count / total) if on_host(count) else (count / total).astype(np.float32)


def _reporting_to(observation):
    if chainer.reporter._get_reporters():
        return chainer.report_scope(observation)
    return contextlib.nullcontext()
