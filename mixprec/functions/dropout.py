"""Dropout (Srivastava et al. 2014), the same on every backend for the same random state."""

import chainer

from mixprec.backends.dropout_state import dropout_next
from mixprec.functions import checks
from mixprec.functions.node import Node


def dropout(x, ratio=0.5):
    """Sets a share of the elements to zero and divides the others by ``1 - ratio``, if ``chainer.config.train``.

    The zeros are drawn from one random state for each device, itself seeded from ``np.random`` at its first use: after
    ``np.random.seed`` and :func:`mixprec.functions.reset_dropout` a run repeats. ``F.forget`` would draw new zeros, as
    with Chainer's own.

    Args:
        x: any shape, in a storage dtype.
        ratio: from 0 to below 1, the share of zeros.

    Returns:
        Variable like ``x``; ``x`` itself outside of training.

    Raises:
        TypeError: x is not in a storage dtype.
        ValueError: ``ratio`` is out of range.

    Example:
        >>> import chainer, numpy as np
        >>> from mixprec import functions
        >>> x = np.ones(1000, np.float16)
        >>> with chainer.using_config("train", True):
        ...     y = functions.dropout(x, 0.2).array
        >>> sorted(set(y.tolist()))  # about 200 of them are 0
        [0.0, 1.25]
        >>> with chainer.using_config("train", False):
        ...     bool((functions.dropout(x, 0.2).array == x).all())
        True
    """
    ratio = checks.number(Dropout.name, "ratio", ratio, 0.0, below=1.0)
    return Dropout(ratio).apply((x,))[0] if chainer.config.train else chainer.as_variable(x)


class Dropout(Node):
    """See :func:`dropout`."""

    name = "dropout"
    image_inputs = (0,)
    is_repeatable = True  # with its key

    def __init__(self, ratio):
        self._ratio = ratio
        self._key = None

    def compute(self, primitives, x):
        if self._key is None:
            y, self._key = dropout_next(primitives, x, self._ratio)
            return (y,)
        return (primitives.dropout(x, self._ratio, self._key),)

    def gradients(self, primitives, indexes, dy):
        return (primitives.dropout(dy, self._ratio, self._key),)
