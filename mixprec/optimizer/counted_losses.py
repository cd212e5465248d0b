"""An iterator of losses with a known length, so that the wrapper knows which backward pass is the last."""

from collections.abc import Iterator


class CountedLosses(Iterator):
    """The return value of a loss function that has several losses in one step.

    Args:
        losses: iterator, such as a generator.
        number: how many losses it has; 0 if unknown.
    """

    def __init__(self, losses, number):
        self._losses, self._left = losses, number

    def __next__(self):
        self._left -= 1
        return next(self._losses)

    def __length_hint__(self):
        return max(self._left, 0)
