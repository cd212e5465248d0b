"""Batch normalization, ReLU and max pooling, as after the first convolution of a ResNet."""

import copy

from mixprec.functions import layer_gradients
from mixprec.functions.batch_normalization import check_batch
from mixprec.functions.node import Node, Part
from mixprec.functions.pooling import MaxPooling2D


class BatchNormalizationMaxPooling2D(Node):
    """The maxima of windows of ``relu(one(x))``, by the statistics of the batch; inputs x, gamma and beta.

    Args:
        one: :class:`~mixprec.functions.batch_normalization.BatchNormalization` with a ReLU, not applied.
        pooling: :class:`~mixprec.backends.geometry.Pooling`.
    """

    name = "batch_normalization_max_pooling_2d"
    image_inputs = (0,)
    takes_two_terms = True

    def __init__(self, one, pooling):
        self._one = one
        self._pooling = pooling
        self.options = *one.options, pooling

    def check(self, x, gamma, beta):
        self._one.check(x, gamma, beta)
        MaxPooling2D(self._pooling).check(x)

    def compute(self, primitives, x, gamma, beta):
        check_batch(self.name, x.shape)
        self.retain_inputs((0, 1, 2))
        normalized = self._one.normalized(x, gamma, beta)
        y, self._where, self._saved = primitives.batch_norm_max_pool(normalized, self._pooling)
        self._one.statistics = None  # they have moved
        return (y,)

    def again(self):
        return copy.copy(self)

    def gradients(self, primitives, indexes, dy, plus=None):
        arrays = self.retained()
        observer = layer_gradients.now.observer
        if observer is None:
            one = self._one.normalized(*arrays)
            return primitives.batch_norm_max_pool_backward(dy, self._where, one, self._saved, self._pooling, plus=plus)
        # It needs the gradient of the pooled images, which is computed separately for it.
        x, gamma, beta = arrays
        dy = dy if plus is None else primitives.add(dy, plus)
        g = primitives.max_pool_backward(dy, self._where, self._pooling, x.shape)
        observer.scales(self.inputs[1:3], x, g, (gamma, beta), self._saved, True)
        return primitives.batch_norm_backward(g, x, gamma, beta, self._saved, self._one.attributes)[:3]

    def behind(self, h):
        """Returns the pooling.

        Args:
            h: variable node of the pooled images, which turned out to be needed by themselves.
        """
        return Part(self, (h,), _pooling)


def _pooling(node, inputs):
    images, channels, *size = inputs[0].shape
    return MaxPooling2D.with_places(node._pooling, node._where, (images, *size, channels))
