"""Convolutions that take the sums of the batch normalization after them, if a device has found that to be faster.

A convolution is applied before anybody knows what follows it. It is not put off until then: its result is an ordinary
variable for whoever wants it. What is remembered is what followed at the same place in the call before, and where that
was a batch normalization with statistics of the batch, the device is asked whether to take sums. If another one follows
this time, they are left over, and the next call takes none.
"""

import weakref


class Place:
    """A convolution at one place in a model, in training or not.

    Attributes:
        following: :class:`~mixprec.backends.geometry.Following` that came after it in the last call, or ``None``.
    """

    following = None

    def take_following(self):
        """Returns :attr:`following`, which is ``None`` from then on, until it follows again."""
        following, self.following = self.following, None
        return following


class Convolved:
    """The result of a convolution, in the call that has computed it.

    Args:
        y: variable, the result.
        sums: array, or ``None`` if there are none.
        place: :class:`Place`.
    """

    def __init__(self, y, sums, place):
        self.sums = sums
        self.place = place
        self._variable, self._array = weakref.ref(y), weakref.ref(y.array)

    def is_of(self, x):
        """Whether a variable is the result, and has its array still."""
        return self._variable() is x and self._array() is x.array


def convolved_as(scope, x):
    """Returns the :class:`Convolved` of a variable in a :class:`~mixprec.rewrite.scope.Scope`, or ``None``."""
    found = scope.convolved.get(id(x))
    return found if found is not None and found.is_of(x) else None
