"""Places in a model: what a converted link remembers of its functions from one call to the next.

A place is the n-th batch normalization, or the n-th convolution, that one link applies in one call of the model, in
training or in evaluation. :class:`~mixprec.rewrite.conversion.LinkState` keeps the places of its link.
"""

import weakref

KEPT = "it is kept, or a result of the model"
UNUSED = "it is not used"


class NormalizationPlace:
    """The place of a batch normalization.

    Attributes:
        fused: name of the :class:`~mixprec.rewrite.fusions.Fusion` of the last call; ``False`` if it is not deferred
            any more, ``None`` before its first call.
        why: why it is not deferred any more.
        apart: what is not fused with it, and why, where it is fused with less; for reports.
    """

    def __init__(self):
        self.fused = None
        self.why = self.apart = ""

    @property
    def text(self):
        """What the report says."""
        return f"{self.fused}, {self.apart}" if self.fused and self.apart else self.fused or self.why

    def give_up(self, why):
        """Ends the fusion at this place."""
        self.fused, self.why = False, why


class Unfused:
    """A batch normalization that a function has made compute alone: the report names all functions that take it.

    Args:
        site: :class:`~mixprec.rewrite.places.NormalizationPlace`.
        result: the :class:`~mixprec.rewrite.deferred.Deferred` of the normalization.
        total: that of a sum with it that was taken first, or ``None``.
    """

    def __init__(self, site, result, total):
        self._site = site
        self._result, self._takers = weakref.ref(result), result.takers
        self._total, self._takers_of_total = (None, None) if total is None else (weakref.ref(total), total.takers)
        self._say()

    def is_taken(self, x, name):
        """Notes that a function of this name takes a variable, which may be the result or the sum."""
        if self._result() is x:
            self._takers.append(name)
        elif self._total is not None and self._total() is x:
            self._takers_of_total.append(name)
        self._say()

    def _say(self):
        if len(self._takers) > 1:
            why = f"it is used by {len(self._takers)}: {', '.join(self._takers)}"
        elif self._total is not None:
            why = f"an addition follows, and then {', '.join(self._takers_of_total)}"
        elif self._takers == ["Add"]:
            why = "it is added to another one, or broadcast"
        else:
            why = f"{self._takers[0]} follows"
        self._site.give_up(why)

    def end(self):
        """Ends the call: of what is still held, that is the reason."""
        if self._result() is not None:
            self._site.give_up(KEPT)
        elif self._total is not None and self._total() is not None:
            self._site.give_up(of_sum(KEPT))


def of_sum(why):
    """Returns the reason for a batch normalization if ``why`` is the one for a sum with it."""
    return "a sum with it is kept, or a result of the model" if why == KEPT else why


class ConvolutionPlace:
    """The place of a convolution, which may take the sums of the batch normalization after it.

    A convolution is applied before it is known what follows it. It is not deferred: its result is an ordinary variable.
    Instead its place remembers which batch normalization followed in the call before. If one did, with statistics of
    the batch, the device may take sums while it convolves. If another function follows this time, the sums are not
    used, and the next call takes none.

    Attributes:
        following: :class:`~mixprec.backends.geometry.Following` that came after it in the last call, or ``None``.
    """

    following = None
