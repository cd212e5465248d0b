"""What all ranks do in a call of a captured step: sums over NCCL are in the graph as they are in an eager step.

:class:`~mixprec.graph_capture.captured.Captured` makes a :class:`Wish` before each call, and does what :func:`agreed`
returns. Without other ranks that is the wish itself.
"""

from typing import NamedTuple

# In the order in which one rank decides for all.
REFUSED, FAILED, EAGER, CAPTURE, LAUNCH = _KINDS = ("refused", "failed", "eager", "capture", "launch")


class Wish(NamedTuple):
    """What a rank wishes to do in a call.

    Attributes:
        kind: ``REFUSED``, an error, nothing is done; ``FAILED``, eager from now on with these arguments; ``EAGER``, for
            this call; ``CAPTURE``, to capture a graph and to compare it; ``LAUNCH``.
        reason: why, as text.
        graph: number of the capture that made the graph of this rank, as all ranks count; 0 without a graph. Graphs
            that were not captured together are not launched together.
        drops: whether graphs of the others are of no use any more, as this rank has dropped its own.
    """

    kind: str
    reason: str
    graph: int = 0
    drops: bool = False

    @property
    def number(self):
        """Equal for wishes that go together, above 0."""
        return len(_KINDS) * self.graph + _KINDS.index(self.kind) + 1


def agreed(own, wishes):
    """Returns what this rank does in a call: all are eager if not all have the same wish.

    Graphs stay for later calls, but if one rank has dropped its own, or captures a new one, for which it needs others.

    Args:
        own: :class:`Wish` of this rank.
        wishes: those of all ranks, a list in their order; ``None`` if they are all the same.
    """
    if wishes is None:
        return own
    rank, first = min(enumerate(wishes), key=lambda each: _KINDS.index(each[1].kind))
    drops = any(wish.drops or (wish.kind == CAPTURE and not wish.graph) for wish in wishes)
    kind = first.kind if first.kind in (REFUSED, FAILED) else EAGER
    return Wish(kind, f"on rank {rank}: {first.reason}", drops=drops)
