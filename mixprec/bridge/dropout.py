"""``cupy.cudnn.DropoutStates``: random numbers that are not kept but made once more for the gradient.

The state lies on the device and moves there, so that a captured step drops other elements in each replay.
"""

from mixprec.backends import primitives_of
from mixprec.bridge import chainers_own
from mixprec.bridge.calls import contiguous, or_chainers_own


class DropoutStates:
    """Random numbers for one device, that of the first array. The arguments ``handle`` are not used.

    Args:
        seed: of the random numbers; an unsigned int of 64 bits.
    """

    def __init__(self, handle, seed):
        self._seed = int(seed)
        self._state = None

    def set_dropout_ratio(self, dropout_ratio):
        """Does nothing: only cuDNN's RNN takes a ratio from here, and that is not bridged."""

    def forward(self, handle, x, dropout_ratio):
        """Returns ``(reserve_space, y)``: what :meth:`backward` needs to drop the same elements, and the result."""
        return _dropout_forward(x, dropout_ratio, self)

    def backward(self, handle, dy, dropout_ratio, reserve_space):
        """Returns the gradient with respect to x."""
        return _dropout_backward(dy, dropout_ratio, reserve_space)

    def next_key(self, primitives):
        """Returns what the random numbers of one array are made from, an array on the device."""
        if self._state is None:
            self._state = primitives.new_random_state(self._seed)
        return primitives.dropout_key(self._state)


@or_chainers_own(chainers_own.dropout_forward)
def _dropout_forward(x, dropout_ratio, states):
    primitives = primitives_of(x)
    key = states.next_key(primitives)
    return key, primitives.dropout(contiguous(x), dropout_ratio, key)


@or_chainers_own(chainers_own.dropout_backward)
def _dropout_backward(dy, dropout_ratio, reserve_space):
    return primitives_of(dy).dropout(contiguous(dy), dropout_ratio, reserve_space)
