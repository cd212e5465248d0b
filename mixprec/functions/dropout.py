"""Dropout (Srivastava et al. 2014), the same on every backend for the same random state."""

import os

import chainer
import numpy as np

from mixprec.backends import primitives_of
from mixprec.functions import checks
from mixprec.functions.node import Node

_states = {}  # by the primitives of a device


def dropout(x, ratio=0.5):
    """Sets a share of the elements to zero and divides the others by ``1 - ratio``, if ``chainer.config.train``.

    Which ones is drawn from one random state for each device, itself seeded from ``np.random`` at its first use: after
    ``np.random.seed`` and :func:`reset_dropout` a run repeats. ``F.forget`` would draw anew, as with Chainer's own.

    Args:
        x: any shape, in a storage dtype.
        ratio: from 0 to below 1, the share of zeros.

    Returns:
        Variable like ``x``; ``x`` itself outside of training.

    Raises:
        TypeError: x is not in a storage dtype.
        ValueError: ``ratio`` is out of range.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"dropout: ratio must be from 0 to below 1; found {ratio}")
    if not chainer.config.train:
        return chainer.as_variable(x)
    return Dropout(ratio).apply((x,))[0]


def reset_dropout():
    """Forgets the random states: the next dropout on each device draws a new seed from ``np.random``."""
    _states.clear()


os.register_at_fork(after_in_child=reset_dropout)  # a process that shared them would repeat the zeros of its parent


def _state(primitives):
    if primitives not in _states:
        _states[primitives] = primitives.new_random_state(np.random.randint(0, 2**63 - 1, dtype=np.int64))
    return _states[primitives]


class Dropout(Node):
    """See :func:`dropout`."""

    name = "dropout"

    def __init__(self, ratio):
        self._ratio = ratio

    def check(self, x):
        checks.dtype(self.name, "x", x)

    def compute(self, primitives, x):
        self._key = primitives.dropout_key(_state(primitives_of(x)))
        return (primitives.dropout(self.dense("x", x), self._ratio, self._key),)

    def gradients(self, primitives, indexes, dy):
        return (primitives.dropout(dy, self._ratio, self._key),)
