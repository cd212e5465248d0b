"""Gradient accumulation: one optimizer step over several batches, with the activations of one batch at a time.

The updaters wrap the model in :class:`Accumulated` if ``training.accumulation_steps`` is more than 1, or if several
ranks train together.
"""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import chainer
import numpy as np

from mixprec.backends.transfers import on_host, to_host
from mixprec.optimizer.counted_losses import CountedLosses
from mixprec.training.label_accuracy import valid_images


class Weighing(NamedTuple):
    """How batches count in a mean loss in which images have weights.

    Attributes:
        weight: function from a batch, the arguments of the loss function, to the sum of the weights of its images:
            a number, or an array of shape () on the device.
        mean: function from a float64 array of the host to its mean over ranks, which all call it.
    """

    weight: Callable
    mean: Callable

    def of_ranks(self, batches):
        """Returns the sum of the weights of the batches of a step, as a mean over ranks, float32 (); waits for it."""
        return self.mean(np.array(sum(float(to_host(self.weight(batch))) for batch in batches))).astype(np.float32)


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
        weighing: :class:`Weighing`, if that mean is a weighted one; the step's is one then, too. What is reported
            beside the loss still is a mean over images.
    """

    def __init__(self, lossfun, weighing=None):
        self._lossfun = lossfun
        self._weighing = weighing

    def __call__(self, batches, images=None, weight=None):
        """Returns an iterator of the weighted loss of each batch.

        The graph of a loss is freed before the next one is computed.

        Args:
            batches: list of tuples, the arguments of ``lossfun``: images, and labels.
            images: with several ranks, the mean over ranks of the number of images that count, a float32 array of shape
                (). The means over ranks of losses and of reported values are then means over all images.
            weight: with several ranks, the mean over ranks of the sum of the weights of these images, if they have any.
        """
        return CountedLosses(self._losses(batches, images, weight), len(batches))

    def _losses(self, batches, images, weight):
        means = {}
        counts, total = _counts(batches)
        shares = [_share(count, total if images is None else images) for count in counts]
        weights = shares if self._weighing is None else _shares_of_weights(self._weighing.weight, batches, weight)
        for each in zip(batches, shares, weights, strict=True):
            yield self._loss(*each, means)
        chainer.report(means)

    def _loss(self, batch, share, weight, means):
        observation = {}
        with _reporting_to(observation):
            loss = self._lossfun(*batch)
        for name, value in observation.items():
            value = chainer.as_array(value) if isinstance(value, chainer.Variable) else value
            if getattr(value, "ndim", 0) == 0:
                means[name] = means.get(name, 0) + (weight if value is loss.array else share) * value
        return loss * weight


def _counts(batches):
    """Returns the number of images that count in each batch, and their sum, at least 1, on the labels' device."""
    counts = list(map(valid_images, batches))
    total = sum(counts)
    return counts, max(total, 1) if on_host(total) else chainer.backend.get_array_module(total).maximum(total, 1)


def _shares_of_weights(weight_of, batches, total):
    """Returns the share of each batch in the weights, 0 if there are none."""
    weights = list(map(weight_of, batches))
    total = sum(weights) if total is None else total
    return [_share(weight, total + (total == 0)) for weight in weights]


def _share(count, total):
    """Returns ``count / total`` in float32."""
    return np.float32(count / total) if on_host(count) else (count / total).astype(np.float32)


def _reporting_to(observation):
    if chainer.reporter._get_reporters():
        return chainer.report_scope(observation)
    return contextlib.nullcontext()
