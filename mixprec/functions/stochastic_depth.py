"""Stochastic depth (Huang et al. 2016): whole images of a residual branch are dropped."""

import chainer

from mixprec.backends import primitives_of
from mixprec.backends.dropout_state import dropout_key
from mixprec.functions import checks
from mixprec.functions.node import Node, as_nhwc


def stochastic_depth(x, ratio):
    """Sets each row of a batch to zero with a probability and divides the others, if ``chainer.config.train``.

    For the branch of a residual block, before the addition: Huang et al. 2016, arXiv:1603.09382. Rows are dropped as by
    ``torchvision.ops.stochastic_depth(x, ratio, "row")`` and timm's ``DropPath``: kept rows are divided by
    ``1 - ratio``, so that the expectation is ``x``. Rows are drawn from the random state of
    :func:`~mixprec.functions.dropout`. ``F.forget`` would draw other rows; :func:`mixprec.recompute` does not.

    In a converted model ``relu(stochastic_depth(bn(h), ratio) + shortcut)`` is computed in one pass, with the batch
    normalization.

    Args:
        x: (N, ...) in a storage dtype; images may lie in memory as (N, C, H, W) or (N, H, W, C).
        ratio: from 0 to below 1, the probability that a row is dropped.

    Returns:
        Variable like ``x``; ``x`` itself outside of training, and for a ratio of 0.

    Raises:
        TypeError: x is not in a storage dtype.
        ValueError: ``ratio`` is out of range, or x has no axes.

    Example:
        >>> import chainer, numpy as np
        >>> from mixprec import functions
        >>> h, x = np.ones((64, 7, 7, 16), np.float16), np.ones((64, 7, 7, 16), np.float16)
        >>> with chainer.using_config("train", True):
        ...     y = functions.stochastic_depth(h, 0.5) + x  # the end of a residual block
        >>> sorted(set(y.array.ravel().tolist()))  # dropped images are x, the others x + h / (1 - 0.5)
        [1.0, 3.0]
    """
    ratio = checks.number(StochasticDepth.name, "ratio", ratio, 0.0, below=1.0)
    if not isinstance(x, chainer.Variable):  # the array of one that is deferred would be computed
        checks.variable(StochasticDepth.name, "x", x)
    if not chainer.config.train or not ratio:
        return chainer.as_variable(x)
    # Not by Node.apply: a converted model has a rule for this function, as for Chainer's functions.
    return chainer.FunctionNode.apply(StochasticDepth(ratio), (x,))[0]


def row_factors(x, ratio):
    """Returns random factors (N,) float32 of the rows of an array (N, ...), 0 or ``1 / (1 - ratio)``, on its device."""
    primitives = primitives_of(x)
    with chainer.using_device(chainer.backend.get_device_from_array(x)):
        return primitives.row_factors(len(x), ratio, dropout_key(primitives))


class StochasticDepth(Node):
    """See :func:`stochastic_depth`.

    Args:
        ratio: probability that a row is dropped; ``None`` with factors.
        factors: ``None`` to draw some, or the result of :func:`row_factors`.
    """

    name = "stochastic_depth"
    image_inputs = (0,)
    is_repeatable = True  # with its factors

    def __init__(self, ratio=None, factors=None):
        self.ratio = ratio
        self._factors = factors

    def check(self, x):
        super().check(x)
        if not x.ndim:
            raise ValueError(f"{self.name}: x must be (N, ...); found shape ()")

    def forward(self, inputs):
        """See :meth:`~mixprec.functions.node.Node.forward`; images keep their order in memory."""
        (x,) = inputs
        self.channels_first = x.ndim == 4 and not x.flags.c_contiguous and as_nhwc(x).flags.c_contiguous
        return super().forward(inputs)

    def compute(self, primitives, x):
        if self._factors is None:
            self._factors = row_factors(x, self.ratio)
        return (primitives.scale_rows(x, self._factors),)

    def gradients(self, primitives, indexes, dy):
        return (primitives.scale_rows(dy, self._factors),)
