"""Which differences of graphs from eager steps count, where bits vary from run to run.

Even a right graph may differ then. Two samples of a small noise may be far apart by chance; only one of launch and
eager step may overflow, while the loss scale falls to what a network bears; an image may be classified otherwise. So a
difference counts if the same array differs in several calls in a row, each with another state and another graph.
"""

from mixprec.base.announcements import announce

CALLS = 6  # in a row, in each of which the same array differs, until a graph is refused
MOST_RUNS = 4  # of each kind in a call
_MANY = 12  # calls that compare until it is said


class Doubts:
    """The differences of one specialization in the calls that compare.

    Args:
        name: of the work, for messages.

    Attributes:
        runs: how many runs of each kind the next call is to compare: one more after each call with a difference.
    """

    def __init__(self, name):
        self._name = name
        self.clear()

    def clear(self):
        """To be called when there are no graphs that could be compared any more."""
        self.runs, self._calls, self._names, self._in_row = 2, 0, None, 0

    def after(self, reasons):
        """Takes the differences of a call.

        Args:
            reasons: dict from names of what differs on this rank to sentences.

        Returns:
            the sentence about one that counts, or ``None``.
        """
        again = {name for name in reasons if self._names is None or name in self._names}
        self._in_row = self._in_row + 1 if again else 1
        self._names = again or set(reasons)
        if self._in_row < CALLS or not again:
            return None
        return next(reasons[name] for name in reasons if name in again)

    def over(self, differs):
        """Ends a call that compares; ``differs`` says whether something has differed on a rank."""
        self._calls += 1
        if differs:
            self.runs = min(self.runs + 1, MOST_RUNS)
        else:
            self._names, self._in_row = None, 0
        if self._calls == _MANY:
            announce("%s still runs eagerly: in %d calls graphs did not do the same twice in a row", self._name, _MANY)
