"""``cupy.cudnn.DropoutStates``: random numbers that are not stored but generated again for the gradient.

They come from the random state of :func:`mixprec.functions.dropout`, which is kept and advanced on the device: a
captured step drops other elements in each replay, and a snapshot of a ``MixedPrecisionOptimizer`` includes the state.
"""

from mixprec.backends import primitives_of
from mixprec.backends.dropout_state import dropout_next
from mixprec.bridge import chainers_own
from mixprec.bridge.calls import contiguous, or_chainers_own


class DropoutStates:
    """The random numbers of a device. The arguments ``handle`` are not used.

    Args:
        seed: seed of the random numbers if this is the first dropout on the device; an unsigned 64-bit integer.
    """

    def __init__(self, handle, seed):
        self._seed = int(seed)

    def set_dropout_ratio(self, dropout_ratio):
        """Does nothing: only cuDNN's RNN reads the ratio from here, and it is not bridged."""

    def forward(self, handle, x, dropout_ratio):
        """Returns ``(reserve_space, y)``: the data for :meth:`backward` to drop the same elements, and the result."""
        return _forward(x, dropout_ratio, self._seed)

    def backward(self, handle, dy, dropout_ratio, reserve_space):
        """Returns the gradient with respect to x."""
        return _backward(dy, dropout_ratio, reserve_space)


@or_chainers_own(chainers_own.dropout_forward, name="DropoutStates.forward")
def _forward(x, dropout_ratio, seed):
    y, key = dropout_next(primitives_of(x), contiguous(x), dropout_ratio, seed)
    return key, y


@or_chainers_own(chainers_own.dropout_backward, name="DropoutStates.backward")
def _backward(dy, dropout_ratio, reserve_space):
    return primitives_of(dy).dropout(contiguous(dy), dropout_ratio, reserve_space)
