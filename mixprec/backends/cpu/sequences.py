"""Sequences packed step by step on NumPy."""

import numpy as np

from mixprec.backends.recurrence import first_rows


class Sequences:
    """The packed sequences of :class:`~mixprec.backends.primitives.Primitives`."""

    def pack_sequences(self, xs, order):
        """See :meth:`~mixprec.backends.primitives.Primitives.pack_sequences`."""
        xs = [xs[index] for index in order]
        firsts = first_rows(list(map(len, xs)))
        packed = np.empty((firsts[-1], *xs[0].shape[1:]), xs[0].dtype)
        for place, x in enumerate(xs):
            packed[firsts[: len(x)] + place] = x
        return packed

    def unpack_sequences(self, packed, lengths, order):
        """See :meth:`~mixprec.backends.primitives.Primitives.unpack_sequences`."""
        firsts = first_rows([lengths[index] for index in order])
        found = [None] * len(order)
        for place, index in enumerate(order):
            found[index] = packed[firsts[: lengths[index]] + place]
        return found
