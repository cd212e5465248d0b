"""Whether all ranks are at the same step: a message of two numbers before each, and a longer one if they differ.

:class:`~mixprec.distributed.exchange.GradientExchange` has a :class:`StepCheck`, and sends no gradient before that is
done.
"""

from mixprec.distributed.same_models import check_same, check_updates

# Between the fingerprints of two votes: more than updates that one rank could have missed, so that these are not taken
# for a vote; and odd, as fingerprints are taken modulo a power of two.
_APART = 7919


class StepCheck:
    """Compares parameters, the number of updates, and what ranks vote to do."""

    def __init__(self):
        self._work = None  # a sum under way
        self._sums = self._own = None  # its array, and what this rank has added
        self._transport = self._told = None

    def start(self, transport, members, updates, number, vote):
        """Starts to compare.

        Args:
            transport: :class:`~mixprec.distributed.transport.Transport`.
            members: :class:`~mixprec.distributed.same_models.Members`.
            updates: how many updates are over.
            number: equal for equal votes; 0 without a vote.
            vote: what this rank votes to do in a call of a captured step, a small object; ``None`` outside of one.
        """
        self._transport, self._told = transport, (members.description, updates, vote)
        self._own = members.fingerprint(updates + _APART * number)
        self._sums = self._own.copy()
        self._work = transport.start(self._sums)

    def is_agreed(self):
        """Whether all ranks are known by now to be the same; does not wait."""
        if self._work is not None and self._work.done and (self._sums == self._transport.size * self._own).all():
            self._work = None
        return self._work is None

    def agree(self):
        """Waits until all is known.

        Returns:
            The votes of all ranks, a list in their order; ``None`` if they are all the same.

        Raises:
            ValueError: parameters are not the same; on all ranks, naming the first parameter and rank that differ.
            RuntimeError: an update has failed on some ranks only, or some are in a captured step and others not; on
                all ranks.
        """
        if self._work is None:
            return None
        self._work.join()
        if self.is_agreed():
            return None
        self._work = None
        descriptions, updates, votes = zip(*self._transport.gather(self._told), strict=True)
        check_same(descriptions)
        check_updates(updates)
        for rank, vote in enumerate(votes):
            if (vote is None) != (votes[0] is None):
                here, there = ("a captured step", "update()")[:: 1 if vote is None else -1]
                raise RuntimeError(f"rank 0 has called {here}, rank {rank} {there}: let all ranks call the same")
        return list(votes)

    def forget(self):
        """Ends a comparison that nothing depends on; waits for it."""
        if self._work is not None:
            self._work.join()
        self._work = None
