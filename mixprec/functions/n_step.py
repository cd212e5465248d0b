"""Stacks of recurrent layers over sequences, as Chainer's ``F.n_step_lstm`` and the like compute them."""

import inspect
import itertools
from typing import NamedTuple

import chainer.functions as F

from mixprec.backends.recurrence import GATES, Recurrence, sizes_of
from mixprec.base.dtypes import STORAGE_DTYPES
from mixprec.functions.concatenation import Concatenation, RowParts, Rows
from mixprec.functions.dropout import dropout
from mixprec.functions.recurrent import PackedSequences, Recurrent, UnpackedSequences


class Stack(NamedTuple):
    """Recurrent layers on top of each other. Arguments of its methods:

    * states: the first states h, and of an LSTM c: variables (layers * directions, B, H), ``None`` for zeros;
    * ws: for each layer and direction the matrices of all gates, first of the inputs, then of the states;
    * bs: their biases.

    They return ``(states, ys)``, the last states, and the results of the last layer, like xs, with directions * H
    columns.

    Attributes:
        kind: a key of :data:`~mixprec.backends.recurrence.GATES`.
        ratio: of the dropout between layers.
        directions: 1 or 2.
    """

    kind: str
    ratio: float
    directions: int

    def over_sequences(self, states, ws, bs, xs):
        """Computes the layers over xs, a list of B sequences (T, C) of any lengths."""
        lengths = tuple(map(len, xs))
        order = tuple(sorted(range(len(xs)), key=lengths.__getitem__, reverse=True))  # stable
        (packed,) = PackedSequences(order).apply(tuple(xs))
        of_states = None if order == tuple(range(len(xs))) else order
        last, packed = self._computed(states, ws, bs, packed, len(xs), sizes_of(lengths), of_states)
        return last, list(UnpackedSequences(order, lengths).apply((packed,)))

    def over_steps(self, states, ws, bs, xs):
        """Computes the layers over xs, a list of the rows (B_t, C) of each step.

        The B sequences are sorted by falling length, so that B_t never grows.
        """
        sizes = tuple(map(len, xs))
        (packed,) = Rows().apply(tuple(xs))
        last, packed = self._computed(states, ws, bs, packed, states[0].shape[1], sizes)
        return last, RowParts(list(itertools.accumulate(sizes))).apply((packed,))

    def _computed(self, states, ws, bs, packed, batch, sizes, order=None):
        states = [[None] * len(ws) if each is None else F.separate(each, axis=0) for each in states]
        counts, last = (GATES[self.kind],) * 4, []
        for first in range(0, len(ws), self.directions):
            if first and self.ratio:
                packed = dropout(packed, self.ratio)
            results = []
            for index in range(first, first + self.directions):
                before = [each[index] for each in states]
                has = tuple(state is not None for state in before)
                layer = Recurrence(self.kind, batch, sizes, reverse=index > first)
                node = Recurrent(layer, ws[index][0].shape[0], (*has, False)[:2], counts, order)
                y, *after = node.apply((packed, *itertools.compress(before, has), *ws[index], *bs[index]))
                results.append(y)
                last.append(after)
            packed = Concatenation(self.directions).apply(results)[0] if self.directions > 1 else y
        return [F.stack(each) for each in zip(*last, strict=True)], packed


class Call:
    """A call of one of Chainer's ``n_step_lstm_base``, ``n_step_gru_base`` and ``n_step_rnn_base``.

    Args:
        function: the function of Chainer.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Attributes:
        stack: :class:`Stack`.
        states, ws, bs, xs: arguments of :meth:`Stack.over_steps`.
    """

    def __init__(self, function, args, kwargs):
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        kind = "lstm" if "cx" in given else given.get("activation", "gru")
        self.stack = Stack(kind, given["dropout_ratio"], 1 + given["use_bi_direction"])
        self.states = [given[name] for name in ("hx", "cx") if name in given]
        self.ws, self.bs, self.xs = given["ws"], given["bs"], given["xs"]
        has_known_kind = "activation" not in given or kind in ("tanh", "relu")
        has_layers = len(self.ws) == given["n_layers"] * self.stack.directions
        self._is_known = has_known_kind and has_layers and not given.get("kwargs")

    def fits(self):
        """Whether :meth:`run` takes the arguments; Chainer has messages for others."""
        sizes = [len(x) for x in self.xs]
        is_sorted = sizes == sorted(sizes, reverse=True)
        if not (self._is_known and is_sorted and fits(self.states, self.ws, self.bs, self.xs)):
            return False
        return all(each is not None and each.ndim == 3 and each.shape[1] >= sizes[0] for each in self.states)

    def run(self, states, ws, bs, xs):
        """Returns what the function returns, with these arguments in place of its own."""
        states, ys = self.stack.over_steps(states, ws, bs, xs)
        return *states, ys


def fits(states, ws, bs, xs):
    """Whether xs is a list, and arguments are in storage dtypes and have as many axes as a :class:`Stack` takes."""
    if not (isinstance(xs, (list, tuple)) and xs):
        return False
    matrices = [*xs, *itertools.chain.from_iterable(ws)]
    given = [*matrices, *itertools.chain.from_iterable(bs), *(each for each in states if each is not None)]
    return (
        all(each.ndim == 2 for each in matrices)
        and all(each.dtype in STORAGE_DTYPES for each in given)
        and xs[0].shape[1] == ws[0][0].shape[1]
        and any(len(x) for x in xs)
    )
