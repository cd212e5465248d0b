"""How ranks agree on the kind of a call of a captured step: graphs and eager steps both contain NCCL sums.

:class:`~mixprec.graph_capture.captured.Captured` makes a :class:`RankVote` before each call, and follows the result of
:func:`resolve`. Without other ranks this is the vote itself.
"""

from typing import NamedTuple

# In order of precedence: the first kind that any rank votes for.
REFUSED, FAILED, EAGER, CAPTURE, LAUNCH = _KINDS = ("refused", "failed", "eager", "capture", "launch")


class RankVote(NamedTuple):
    """The vote of a rank for a call.

    Attributes:
        kind: ``REFUSED``: raise an error and do nothing; ``FAILED``: eager from now on with these arguments; ``EAGER``:
            eager in this call; ``CAPTURE``: capture a graph and compare it; ``LAUNCH``: launch the graph.
        reason: the reason, as text.
        graph: number of the capture that made the graph of this rank, counted alike on all ranks; 0 without a graph.
            Only graphs that were captured together are launched together.
        drops: whether the other ranks must drop their graphs, as this rank has dropped its own.
    """

    kind: str
    reason: str
    graph: int = 0
    drops: bool = False

    @property
    def number(self):
        """A number above 0 that is equal for compatible votes."""
        return len(_KINDS) * self.graph + _KINDS.index(self.kind) + 1


def resolve(own, votes):
    """Returns the action of this rank in a call: all ranks run eagerly if their votes differ.

    Graphs are kept for later calls, unless a rank has dropped its own, or votes to capture a new one, for which it
    needs the other ranks.

    Args:
        own: :class:`RankVote` of this rank.
        votes: list of the votes of all ranks, in their order; ``None`` if they are all the same.
    """
    if votes is None:
        return own
    rank, first = min(enumerate(votes), key=lambda each: _KINDS.index(each[1].kind))
    drops = any(vote.drops or (vote.kind == CAPTURE and not vote.graph) for vote in votes)
    kind = first.kind if first.kind in (REFUSED, FAILED) else EAGER
    return RankVote(kind, f"on rank {rank}: {first.reason}", drops=drops)
