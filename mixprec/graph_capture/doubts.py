"""Decides which differences between graphs and eager steps are errors, where bits vary from run to run.

Even a correct graph may differ then. Two samples of small noise may be far apart by chance; only one of launch and
eager step may overflow, while the loss scale falls to a usable value; an image may be classified differently. So a
difference counts if the same array differs in several calls in a row, each with a new state and a new graph.
"""

from mixprec.base.announcements import announce

CALLS = 6  # in a row with a difference in the same array, until a graph is refused
MOST_RUNS = 4  # of each kind in a call
_MANY = 12  # calls that compare before an announcement


class Doubts:
    """The differences of one specialization in the calls that compare.

    Args:
        name: name of the work, for messages.

    Attributes:
        runs: how many runs of each kind the next call is to compare: one more after each call with a difference.
    """

    def __init__(self, name):
        self._name = name
        self.clear()

    def clear(self):
        """Must be called when there are no more graphs to compare."""
        self.runs, self._calls, self._names, self._in_row = 2, 0, None, 0

    def after(self, reasons):
        """Records the differences of a call.

        Args:
            reasons: dict from names of arrays that differ on this rank to sentences.

        Returns:
            The sentence about a difference that counts, or ``None``.
        """
        again = {name for name in reasons if self._names is None or name in self._names}
        self._in_row = self._in_row + 1 if again else 1
        self._names = again or set(reasons)
        if self._in_row < CALLS or not again:
            return None
        return next(reasons[name] for name in reasons if name in again)

    def over(self, differs):
        """Ends a call that compares; ``differs`` says whether any rank found a difference."""
        self._calls += 1
        if differs:
            self.runs = min(self.runs + 1, MOST_RUNS)
        else:
            self._names, self._in_row = None, 0
        if self._calls == _MANY:
            announce("%s still runs eagerly: in %d calls no two graphs in a row matched eager steps", self._name, _MANY)
