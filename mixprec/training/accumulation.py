"""The gradient of several batches for one step of the optimizer, with the activations of one batch at a time.

The updaters put :class:`Accumulated` around the model if ``training.accumulation_steps`` is more than 1.
"""

import contextlib

import chainer
import numpy as np

from mixprec.backends.transfers import on_host
from mixprec.optimizer.counted_losses import CountedLosses
from mixprec.training.label_accuracy import valid_images


class Accumulated:
    """A loss function of several batches, for :meth:`mixprec.MixedPrecisionOptimizer.update` and ``mixprec.capture``.

    ``update(Accumulated(lossfun), batches)`` is a step with the gradient of the mean loss over all images of the
    batches whose labels are not -1, however they are distributed. What ``lossfun`` reports is reported once, as the
    mean over these images. Running statistics move once for each batch.

    With ChainerMN, ``create_multi_node_optimizer(MixedPrecisionOptimizer(...), communicator).update(...)`` takes it as
    well. Gradients are then sent once, after the last batch, and the mean of all processes is that over all images if
    each process has as many of them. Its first update only sends the weights of the first process to all.

    Args:
        lossfun: loss function of one batch: a mean over its images.
    """

    def __init__(self, lossfun):
        self._lossfun = lossfun

    def __call__(self, batches):
        """Returns an iterator of the weighted loss of each batch.

        The graph of one is gone before the next one is computed.

        Args:
            batches: list of tuples, the arguments of ``lossfun``: images, and labels.
        """
        return CountedLosses(self._losses(batches), len(batches))

    def _losses(self, batches):
        means = {}
        for batch, weight in zip(batches, _weights(batches), strict=True):
            yield self._loss(batch, weight, means)
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


def _weights(batches):
    """Returns the share of each batch in the images that count, float32, where the labels are."""
    counts = list(map(valid_images, batches))
    total = sum(counts)
    total = max(total, 1) if on_host(total) else chainer.backend.get_array_module(total).maximum(total, 1)
    return [np.float32(count / total) if on_host(count) else (count / total).astype(np.float32) for count in counts]


def _reporting_to(observation):
    if chainer.reporter._get_reporters():
        return chainer.report_scope(observation)
    return contextlib.nullcontext()
