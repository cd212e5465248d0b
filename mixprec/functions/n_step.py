"""Stacks of recurrent layers over sequences, as Chainer's ``F.n_step_lstm`` and the like compute them."""

import inspect
import itertools

import chainer.functions as F

from mixprec.backends.recurrence import GATES, Recurrence
from mixprec.base.dtypes import STORAGE_DTYPES
from mixprec.functions.concatenation import Concatenation
from mixprec.functions.dropout import dropout
from mixprec.functions.recurrent import PackedSequences, Recurrent, UnpackedSequences


def over_sequences(kind, ratio, states, ws, bs, xs, directions):
    """Computes layers over sequences of any lengths.

    Args:
        kind: a key of :data:`~mixprec.backends.recurrence.GATES`.
        ratio: of the dropout between layers.
        states: the first states, variables (layers * directions, B, H), each ``None`` for zeros: h, and c of an LSTM.
        ws: for each layer and direction the matrices of all gates, first of the inputs, then of the states.
        bs: their biases.
        xs: list of B sequences, variables (T, C).
        directions: 1 or 2.

    Returns:
        ``(states, ys)``: the last states like ``states``, and the list of results (T, directions * H).
    """
    lengths = tuple(map(len, xs))
    order = tuple(sorted(range(len(xs)), key=lambda index: -lengths[index]))
    (packed,) = PackedSequences(order).apply(tuple(xs))
    sizes = tuple(sum(length > step for length in lengths) for step in range(max(lengths)))
    of_states = None if order == tuple(range(len(xs))) else order
    last, packed = _layers(kind, ratio, states, ws, bs, packed, len(xs), sizes, directions, of_states)
    return last, list(UnpackedSequences(order, lengths).apply((packed,)))


def over_steps(kind, ratio, states, ws, bs, xs, directions):
    """Computes layers over steps: as :func:`over_sequences`, but xs are the rows (B_t, C) of each step.

    Sequences are sorted by falling length, so that B_t never grows; ``ys`` is such a tuple, too.
    """
    sizes = tuple(map(len, xs))
    packed = F.concat(xs, axis=0) if len(xs) > 1 else xs[0]
    last, packed = _layers(kind, ratio, states, ws, bs, packed, states[0].shape[1], sizes, directions, None)
    ends = list(itertools.accumulate(sizes))[:-1]
    return last, F.split_axis(packed, ends, 0) if ends else (packed,)


def _layers(kind, ratio, states, ws, bs, packed, batch, sizes, directions, order):
    states = [[None] * len(ws) if each is None else F.separate(each, axis=0) for each in states]
    gates, last = GATES[kind], []
    for first in range(0, len(ws), directions):
        if first and ratio:
            packed = dropout(packed, ratio)
        results = []
        for index in range(first, first + directions):
            before = [each[index] for each in states]
            w = ws[index]
            has = tuple(state is not None for state in before)
            layer = Recurrence(kind, batch, sizes, reverse=index > first)
            node = Recurrent(layer, w[0].shape[0], (*has, False)[:2], (gates,) * 4, order)
            y, *after = node.apply((packed, *itertools.compress(before, has), *w, *bs[index]))
            results.append(y)
            last.append(after)
        packed = Concatenation(directions).apply(results)[0] if directions > 1 else y
    return [F.stack(each) for each in zip(*last, strict=True)], packed


class Call:
    """A call of one of Chainer's ``n_step_lstm_base``, ``n_step_gru_base`` and ``n_step_rnn_base``.

    Args:
        function: the function of Chainer.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Attributes:
        states, ws, bs, xs: as of :func:`over_steps`.
    """

    def __init__(self, function, args, kwargs):
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        self._has_more = bool(given.get("kwargs"))
        self._kind = "lstm" if "cx" in given else given.get("activation", "gru")
        self._ratio, self._directions = given["dropout_ratio"], 1 + given["use_bi_direction"]
        self._layers = given["n_layers"] * self._directions
        self.states = [given[name] for name in ("hx", "cx") if name in given]
        self.ws, self.bs, self.xs = given["ws"], given["bs"], given["xs"]

    def fits(self):
        """Whether :meth:`run` takes the arguments; Chainer has messages for others."""
        sizes = [len(x) for x in self.xs]
        known = not self._has_more and self._kind in GATES and len(self.ws) == self._layers
        return known and fits(self.states, self.ws, self.bs, self.xs) and sizes == sorted(sizes, reverse=True)

    def run(self, states, ws, bs, xs):
        """Returns what the function returns, with these arguments in place of its own."""
        states, ys = over_steps(self._kind, self._ratio, states, ws, bs, xs, self._directions)
        return *states, ys


def fits(states, ws, bs, xs):
    """Whether arguments are in storage dtypes and have as many axes as :func:`over_sequences` takes."""
    matrices = [*xs, *itertools.chain.from_iterable(ws)]
    given = [*matrices, *itertools.chain.from_iterable(bs), *(each for each in states if each is not None)]
    return (
        bool(xs)
        and all(each.ndim == 2 for each in matrices)
        and all(each.dtype in STORAGE_DTYPES for each in given)
        and xs[0].shape[1] == ws[0][0].shape[1]
        and any(len(x) for x in xs)
    )
