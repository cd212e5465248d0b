"""Checks that all ranks are at the same step: a message of two numbers before each, and a longer one if they differ.

:class:`~mixprec.distributed.exchange.GradientExchange` has a :class:`StepCheck`, and sends no gradient before the check
is done.
"""

from mixprec.distributed.same_models import check_same, check_updates

# Distance between the fingerprints of two votes: more than the number of updates that a rank could have missed, so that
# these are not mistaken for a vote; and odd, as fingerprints are taken modulo a power of two.
_APART = 7919


class StepCheck:
    """Compares parameters, the number of updates, and the votes of ranks."""

    def __init__(self):
        self._work = None  # the running sum
        self._sums = self._own = None  # its array, and the numbers of this rank
        self._transport = self._message = None

    def start(self, transport, members, updates, number, vote):
        """Starts to compare.

        Args:
            transport: :class:`~mixprec.distributed.transport.Transport`.
            members: :class:`~mixprec.distributed.same_models.Members`.
            updates: number of finished updates.
            number: equal for equal votes; 0 without a vote.
            vote: vote of this rank for a call of a captured step, a small object; ``None`` outside of such a call.
        """
        self._transport, self._message = transport, (members.description, updates, vote)
        self._own = members.fingerprint(updates + _APART * number)
        self._sums = self._own.copy()
        self._work = transport.start(self._sums)

    def is_agreed(self):
        """Whether all ranks are already known to agree; does not wait."""
        if self._work is not None and self._work.done and (self._sums == self._transport.size * self._own).all():
            self._work = None
        return self._work is None

    def agree(self):
        """Waits for the result.

        Returns:
            The votes of all ranks, a list in their order; ``None`` if they are all the same.

        Raises:
            ValueError: parameters differ; raised on all ranks, naming the first parameter and rank that differ.
            RuntimeError: an update has failed on some ranks only, or only some ranks are in a captured step; raised on
                all ranks.
        """
        if self._work is None:
            return None
        self._work.join()
        if self.is_agreed():
            return None
        self._work = None
        descriptions, updates, votes = zip(*self._transport.gather(self._message), strict=True)
        check_same(descriptions)
        check_updates(updates)
        for rank, vote in enumerate(votes):
            if (vote is None) != (votes[0] is None):
                here, there = ("a captured step", "update()")[:: 1 if vote is None else -1]
                raise RuntimeError(f"rank 0 has called {here}, rank {rank} {there}: let all ranks call the same")
        return list(votes)

    def forget(self):
        """Discards a comparison, after waiting for it."""
        if self._work is not None:
            self._work.join()
        self._work = None
