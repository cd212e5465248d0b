"""Batch normalizations with what follows them in a ResNet, in one node.

Two that are added, and a ReLU, are the end of a residual block with a projection shortcut. ReLU and max pooling follow
the first convolution.
"""

import copy

from mixprec.functions import layer_gradients
from mixprec.functions.batch_normalization import check_batch
from mixprec.functions.node import Node, Part
from mixprec.functions.pooling import MaxPooling2D


class DualBatchNormalization(Node):
    """``relu(one(x) + other(z))`` by the statistics of the batch; inputs x, gamma, beta, then z and its gamma and beta.

    Args:
        one: :class:`~mixprec.functions.batch_normalization.BatchNormalization` with a ReLU, not applied.
        other: a second one without.
    """

    name = "dual_batch_normalization"
    image_inputs = (0, 3)
    takes_two_terms = True

    def __init__(self, one, other):
        self._nodes = one, other
        self.options = one.options, other.options

    @property
    def label(self):
        """The name of the function and of the functions fused with it."""
        return f"{self.name}{' + relu' * self._nodes[0].attributes.relu}"

    def check(self, x, gamma, beta, z, z_gamma, z_beta):
        one, other = self._nodes
        one.check(x, gamma, beta, z)
        other.check(z, z_gamma, z_beta)

    def compute(self, primitives, *arrays):
        check_batch(self.name, arrays[0].shape)
        self.retain_inputs(range(6))
        y, (self._saved, self._saved_other) = primitives.dual_batch_norm(*self._normalized(arrays))
        for node in self._nodes:
            node.statistics = None  # they have moved
        return (y,)

    def again(self):
        return copy.copy(self)

    def gradients(self, primitives, indexes, dy, plus=None):
        pair, saved = self._normalized(self.retained()), (self._saved, self._saved_other)
        *gradients, g = primitives.dual_batch_norm_backward(dy, *pair, saved, plus=plus)
        observer = layer_gradients.now.observer
        if observer is not None:
            for each, of_each, index in zip(pair, saved, (1, 4), strict=True):
                observer.scales(self.inputs[index : index + 2], each.x, g, (each.gamma, each.beta), of_each, False)
        return *gradients[0], *gradients[1]

    def _normalized(self, arrays):
        return [node.normalized(*arrays[first : first + 3]) for node, first in zip(self._nodes, (0, 3), strict=True)]

    def behind(self, other):
        """Returns the part of it that follows the other normalization.

        Args:
            other: variable node of the other one's result, which turned out to be needed by itself.
        """
        return Part(self, (*self.inputs[:3], other), _first)


def _first(node, inputs):
    return node._nodes[0].with_saved(node, inputs, node._saved)


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
