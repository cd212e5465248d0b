"""Batch normalization over all axes but the last, with an addition and a ReLU after it."""

import copy
import math
import warnings

import chainer
import numpy as np

from mixprec.backends.geometry import BatchNorm, Normalized
from mixprec.functions import checks, layer_gradients
from mixprec.functions.node import Node, Part, dense
from mixprec.functions.stochastic_depth import row_factors


def batch_normalization(
    x,
    gamma,
    beta,
    *,
    eps=2e-5,
    running_mean=None,
    running_var=None,
    decay=0.9,
    add=None,
    relu=False,
    sums=None,
    stochastic_depth=0.0,
):
    """Computes ``relu(gamma * (x - mean) / sqrt(variance + eps) + beta + add)`` with the statistics of the batch.

    Ioffe and Szegedy 2015, arXiv:1502.03167, as :func:`chainer.functions.batch_normalization`. The backward pass keeps
    ``x``, not the result.

    Args:
        x: (..., C) in a storage dtype, for images (N, H, W, C).
        gamma: (C,) float32.
        beta: (C,) float32.
        eps: added to the variance.
        running_mean: ``None`` or an array (C,) float32, set in place to ``decay * running_mean + (1 - decay) * mean``.
        running_var: ``None`` or an array (C,) float32, updated in the same way by the unbiased variance.
        decay: share of the running statistics that is kept.
        add: ``None`` or an array or variable to add, like ``x``.
        relu: whether a ReLU follows, after the addition.
        sums: ``None`` or the sums that :func:`~mixprec.functions.convolution_2d` returned together with ``x``.
        stochastic_depth: ratio of :func:`~mixprec.functions.stochastic_depth`, applied to the normalized batch before
            the addition, in the same pass; only with ``add``.

    Returns:
        Variable like ``x``.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape does not fit, ``stochastic_depth`` is out of range, or given without ``add``.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.array([[1, 10], [3, 30]], np.float16)  # N = 2, C = 2; images are (N, H, W, C)
        >>> gamma, beta = np.ones(2, np.float32), np.zeros(2, np.float32)
        >>> functions.batch_normalization(x, gamma, beta).array.tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
        >>> mean, var = np.zeros(2, np.float32), np.ones(2, np.float32)
        >>> y = functions.batch_normalization(x, gamma, beta, running_mean=mean, running_var=var, decay=0.5, relu=True)
        >>> y.array.tolist(), mean.tolist()
        ([[0.0, 0.0], [1.0, 1.0]], [1.0, 10.0])
    """
    name = BatchNormalization.name
    running = checks.running_statistics(name, running_mean, running_var)
    sums = None if sums is None else checks.array(name, "sums", sums)
    ratio = checks.number(name, "stochastic_depth", stochastic_depth, 0.0, below=1.0)
    if ratio and add is None:
        raise ValueError(f"{name}: stochastic_depth needs add, the shortcut; found {ratio} without it")
    draws = ratio and chainer.config.train
    factors = row_factors(checks.array(name, "x", x), ratio) if draws else None
    node = BatchNormalization(attributes_of(name, eps, decay, relu), running, sums, factors=factors)
    return node.apply((x, gamma, beta) if add is None else (x, gamma, beta, add))[0]


def fixed_batch_normalization(x, gamma, beta, mean, var, eps=2e-5, *, add=None, relu=False):
    """Like :func:`batch_normalization`, with given statistics, which are constant and get no gradients.

    Args:
        x: (..., C) in a storage dtype.
        gamma: (C,) float32.
        beta: (C,) float32.
        mean: (C,) float32.
        var: (C,) float32.
        eps: added to the variance.
        add: ``None`` or an array or variable to add, like ``x``.
        relu: whether a ReLU follows, after the addition.

    Returns:
        Variable like ``x``.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.array([[1, 10], [3, 30]], np.float16)
        >>> gamma, beta = np.ones(2, np.float32), np.zeros(2, np.float32)
        >>> mean, var = np.array([1, 20], np.float32), np.array([4, 25], np.float32)
        >>> functions.fixed_batch_normalization(x, gamma, beta, mean, var, eps=0.0).array.tolist()
        [[0.0, -2.0], [1.0, 2.0]]
    """
    name = FixedBatchNormalization.name
    statistics = dense(checks.array(name, "mean", mean)), dense(checks.array(name, "var", var))
    node = FixedBatchNormalization(attributes_of(name, eps, relu=relu), statistics)
    return node.apply((x, gamma, beta) if add is None else (x, gamma, beta, add))[0]


def attributes_of(function, eps, decay=0.9, relu=False):
    """Returns the :class:`~mixprec.backends.geometry.BatchNorm` of arguments; the name is for messages."""
    return BatchNorm(
        checks.number(function, "eps", eps, 0.0),
        checks.number(function, "decay", decay),
        checks.flag(function, "relu", relu),
    )


def check_batch(function, shape, alone=True):
    """A batch (..., C) must have elements for its statistics; a single one in each channel causes a warning.

    It does not warn if the batch is not ``alone``, but part of a batch over several processes.

    Raises:
        ValueError: the batch is empty.
    """
    count = math.prod(shape[:-1])
    if count == 0:
        raise ValueError(f"{function}: an empty batch has no statistics; found shape {shape}")
    if count == 1 and alone:
        warnings.warn(
            f"{function}: x {shape} has one element in each channel, which is its own mean: the result is beta. "
            f"Is chainer.config.train on by mistake?",
            UserWarning,
            stacklevel=3,
        )


class _Normalization(Node):
    """Inputs x, gamma, beta and perhaps the array to add.

    Args:
        attributes: :class:`~mixprec.backends.geometry.BatchNorm`.
        statistics: ``None`` or ``(mean, variance)``.
    """

    image_inputs = (0, 3)  # x, and the array to add

    def __init__(self, attributes, statistics):
        self.attributes = attributes
        self.statistics = statistics
        self.options = tuple([(array.shape, array.dtype) for array in statistics or ()])

    @property
    def label(self):
        added = " + add" if self.inputs is not None and len(self.inputs) == 4 else ""
        return f"{self.name}{added}{' + relu' if self.attributes.relu else ''}"

    def check(self, x, gamma, beta, add=None):
        checks.dtype(self.name, "x", x)
        if x.ndim < 2:
            raise ValueError(f"{self.name}: x must be (..., C); found shape {x.shape}")
        if x.ndim == 4 and (x.shape[1],) == gamma.shape != x.shape[3:]:
            checks.images(self.name, "x", x, len(gamma))
        checks.normalization(self.name, gamma, beta, self.statistics, x.shape[-1])
        if add is not None:
            checks.like(self.name, "add", add, "x", x)


class BatchNormalization(_Normalization):
    """See :func:`batch_normalization`; the attributes serve nodes that compute more in the same pass.

    Args:
        attributes: :class:`~mixprec.backends.geometry.BatchNorm`.
        running: ``None`` or the running statistics ``(mean, variance)``, which move.
        sums: ``None`` or the sums of a convolution.
        ranks: ``None`` or the processes whose batches are one, see
            :meth:`~mixprec.backends.primitives.Primitives.batch_norm`.
        factors: ``None`` or the factors of stochastic depth.
    """

    name = "batch_normalization"
    takes_two_terms = True

    def __init__(self, attributes, running, sums, ranks=None, factors=None):
        super().__init__(attributes, running)
        self.sums = sums
        self._ranks = ranks
        self.factors = factors
        if sums is not None:
            self.options = *self.options, sums.shape, sums.dtype

    def check(self, x, gamma, beta, add=None):
        super().check(x, gamma, beta, add)
        if self.sums is not None and (self.sums.shape != (2, x.shape[-1]) or self.sums.dtype != np.float32):
            raise ValueError(
                f"{self.name}: sums must be (2, {x.shape[-1]}) float32; found {self.sums.shape} {self.sums.dtype}"
            )

    def compute(self, primitives, x, gamma, beta, add=None):
        check_batch(self.name, x.shape, alone=self._ranks is None)
        self.retain_inputs((0, 1, 2))
        options = {"add": add, "sums": self.sums, "ranks": self._ranks, "factors": self.factors}
        y, self._saved = primitives.batch_norm(x, gamma, beta, self.statistics, self.attributes, **options)
        self.statistics = None  # they have moved, and belong to the link
        return (y,)

    def normalized(self, x, gamma, beta):
        """Returns :class:`~mixprec.backends.geometry.Normalized` of arrays, for a node that computes it with more."""
        return Normalized(x, gamma, beta, self.statistics, self.attributes, self.sums)

    def with_saved(self, node, inputs, saved):
        """Returns a node that goes backward like this one, which was not applied.

        Args:
            node: node that was applied instead.
            inputs: variable nodes.
            saved: Saved.
        """
        twin = copy.copy(self)
        twin.retain_inputs((0, 1, 2))
        twin.inputs, twin.channels_first, twin._saved = inputs, node.channels_first, saved
        return twin

    def again(self):
        return copy.copy(self) if self._ranks is None else None

    def gradients(self, primitives, indexes, dy, plus=None):
        x, gamma, beta = self.retained()
        options = {"add": len(self.inputs) == 4, "plus": plus, "ranks": self._ranks, "factors": self.factors}
        gradients = primitives.batch_norm_backward(dy, x, gamma, beta, self._saved, self.attributes, **options)
        observer = layer_gradients.now.observer
        if observer is not None:
            *_, dadd = gradients  # the gradient of the normalized batch, too, without factors
            relu = self.attributes.relu and dadd is None
            if dadd is None:
                dadd = dy if plus is None else primitives.add(dy, plus)
            elif self.factors is not None:
                dadd = primitives.scale_rows(dadd, self.factors)
            observer.scales(self.inputs[1:3], x, dadd, (gamma, beta), self._saved, relu)
        return gradients[: len(self.inputs)]


class FixedBatchNormalization(_Normalization):
    """See :func:`fixed_batch_normalization`."""

    name = "fixed_batch_normalization"

    def compute(self, primitives, x, gamma, beta, add=None):
        self.retain_inputs((0, 1, 2))
        if add is not None and self.attributes.relu:
            self.retain_outputs((0,))
        if chainer.config.enable_backprop:  # running statistics may move before the backward pass
            self.statistics = tuple(array.copy() for array in self.statistics)
        y = primitives.batch_norm_inference(x, gamma, beta, *self.statistics, self.attributes, add=add)
        return (y,)

    def gradients(self, primitives, indexes, dy):
        x, gamma, beta = self.retained()
        added_before_relu = len(self.inputs) == 4 and self.attributes.relu
        y = self.retained_output() if added_before_relu else None
        dx, dgamma, dbeta, dadd = primitives.batch_norm_inference_backward(
            dy, x, gamma, beta, *self.statistics, self.attributes, y=y
        )
        # Without a ReLU an addition needs nothing: its gradient is the gradient of the result.
        return (dx, dgamma, dbeta, dadd if added_before_relu else dy)[: len(self.inputs)]


class AdditionAndReLU(Part):
    """The addition and the ReLU that a node computed after its batch normalization; backward pass only.

    The added operand may have no array any more, so they cannot be computed again.

    Args:
        node: node that computed them.
        operand: variable node of the first operand of the addition.
    """

    def __init__(self, node, operand):
        super().__init__(node, (operand, node.inputs[3]), None)

    def backward(self, indexes, grad_outputs):
        node = copy.copy(self._node)
        node._ranks = None  # other processes have no such function
        with layer_gradients.observing(None):  # the batch normalization itself goes backward elsewhere
            gradient = node.backward((3,), grad_outputs)[3]
        return (gradient,) * len(indexes)
