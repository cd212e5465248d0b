"""One node for a recurrent layer in one direction, and nodes from sequences to packed rows and back."""

import itertools

from mixprec.base.dtypes import FLOAT32
from mixprec.functions import checks, layer_gradients, sums
from mixprec.functions.concatenation import parts_of, with_zeros
from mixprec.functions.node import Node, dense, terms_of
from mixprec.functions.pending import product, total

_GROUPS = "w", "u", "bias of w", "bias of u"


class Recurrent(Node):
    """A layer in one direction, see :meth:`mixprec.backends.primitives.Primitives.recurrent`.

    The inputs are x (rows, C), then the states h and c (B, H) that there are, then the matrices w, the matrices u, the
    biases of w and the biases of u: of each the array of all gates, or one array for each gate. The outputs are
    y (rows, H), the last h (B, H) - not of a cell, as it is y - and of an LSTM the last c.

    Args:
        layer: :class:`~mixprec.backends.recurrence.Recurrence`.
        units: H.
        states: whether h is an input, and whether c is.
        counts: number of arrays of w, of u, and of their biases.
        order: indices that sort the sequences of the states by falling length; ``None`` if they are sorted.
    """

    name = "recurrent"
    is_repeatable = True

    def __init__(self, layer, units, states, counts, order=None):
        self._layer, self._units, self._has, self._counts, self._order = layer, units, states, counts, order
        self.options = layer.gates, layer.rows, layer.batch, units, states, counts
        self.takes_two_terms = layer.is_cell  # y goes to the next layer, and to the next step

    def check(self, *inputs):
        layer, units = self._layer, self._units
        x = inputs[0]
        checks.dtype(self.name, "x", x)
        columns = [(x.shape[-1],), (units,), (), ()]
        shapes = [(layer.rows, x.shape[-1]), *[(layer.batch, units)] * sum(self._has)]
        for count, last in zip(self._counts, columns, strict=True):
            shapes += [(layer.gates // max(count, 1) * units, *last)] * count
        for index, (array, shape) in enumerate(zip(inputs, shapes, strict=True)):
            name = self._argument(index)
            if array.shape != shape:
                raise ValueError(f"{self.name}: {name} must have shape {shape}; found {array.shape}")
            if array.ndim > 1 or array.dtype != FLOAT32:
                checks.same_dtype(self.name, name, array, "x", x)

    def _argument(self, index, count=1):
        names = ["x", *itertools.compress("hc", self._has)]
        for name, number in zip(_GROUPS, self._counts, strict=True):
            names += [name] if number == 1 else [f"{name} [{gate}]" for gate in range(number)]
        return names[index]

    def compute(self, primitives, x, *rest):
        h, c, *groups = self._grouped(rest)
        w, u, *biases = (self._joined(primitives, group) for group in groups)
        # A cell would keep joined matrices of its own in each step.
        self._weights = None if self._layer.is_cell or self._layer.gates == 1 else (w, u)
        first = 1 + sum(self._has)
        self.retain_inputs((0, *range(first, first + (0 if self._weights else sum(self._counts[:2])))))
        h, c = (None if state is None else self._sorted(primitives, state) for state in (h, c))
        y, h, c, self._saved = primitives.recurrent(x, w, u, biases, h, c, self._layer)
        self._y = y if self._saved.gates is None else None
        last = [c] if self._layer.is_cell else [h, c]
        return y, *(self._sorted(primitives, state, back=True) for state in last if state is not None)

    def _grouped(self, rest):
        """Returns h and c, each ``None`` if there is none, and the lists of w, of u, and of their biases."""
        rest = iter(rest)
        states = [next(rest) if has else None for has in self._has]
        return *states, *(list(itertools.islice(rest, count)) for count in self._counts)

    def _joined(self, primitives, arrays):
        return (arrays[0] if arrays else None) if len(arrays) < 2 else primitives.concat_rows(arrays)

    def _sorted(self, primitives, state, back=False):
        if self._order is None:
            return state
        rows = [state[index : index + 1] for index in range(len(state))]
        order = self._order
        if back:
            order = sorted(range(len(order)), key=order.__getitem__)
        return primitives.pack_sequences(rows, tuple(order))

    def terms(self, dy, *last):
        if self._layer.is_cell and type(dy) is not sums.Sum:
            last = None, *last  # y is the last h, too
        return terms_of(dy, *last)

    def gradients(self, primitives, indexes, dy, dh, dc=None):
        (x, *matrices), layer = self.retained(), self._layer
        dh, dc = (None if each is None else self._sorted(primitives, each) for each in (dh, dc))
        has_states = any(self._has)
        of_x = self._counts[0]
        w, u = self._weights or (self._joined(primitives, part) for part in (matrices[:of_x], matrices[of_x:]))
        dx, dp, dq, dh, dc = primitives.recurrent_backward(
            *(dy, dh, dc, w, u, self._y, self._saved, layer), wants_dx=0 in indexes, wants_states=has_states
        )
        states = itertools.compress((dh, dc), self._has)
        found = [dx, *(self._sorted(primitives, state, back=True) for state in states)]
        *_, w, u, of_w, of_u = self._grouped(self.inputs[1:])
        before = [self._saved.states] * 2 + [self._saved.reset] if layer.kind == "gru_reset_before" else None
        xs, states = [x] * layer.gates, before or [self._saved.states] * layer.gates
        if layer.is_cell and layer_gradients.now.observer is not None:
            self._tell(w, of_w, xs, dp, is_first=not has_states)
            self._tell(u, of_u, states, dq)
        for nodes, compute, *arrays in (
            (w, self._of_matrices, xs, dp),
            (u, self._of_matrices, states, dq),
            (of_w, self._of_biases, dp),
            (of_u, self._of_biases, dq),
        ):
            here = range(len(found), len(found) + len(nodes))
            is_wanted = not {*indexes}.isdisjoint(here)  # chainer.grad may ask for x alone
            found += compute(primitives, nodes, *arrays) if is_wanted else [None] * len(nodes)
        if layer.kind == "gru_reset_before" and not has_states:  # Chainer's link does not use this gate then
            found[1] = found[1 + len(w)] = None
        return found

    def _tell(self, nodes, biases, xs, dy, is_first=False):
        """Tells the observer of layers about the linear layers of a cell; a GRU's first step has none for the reset."""
        parts = [dy] if len(nodes) == 1 else self._split(dy)
        skipped = int(is_first and len(nodes) > 1)
        for index, (node, x, part) in list(enumerate(zip(nodes, xs, parts, strict=False)))[skipped:]:
            layer_gradients.tell_linear((node, *biases[index : index + 1]), x, part)

    def _of_matrices(self, primitives, nodes, xs, dy):
        """Returns the gradients of the matrices of ``nodes``, which multiply the arrays ``xs`` of the gates."""
        if len(nodes) == 1:
            return [product(primitives, nodes[0], xs[0], dy)]
        if self._layer.is_cell:
            parts = zip(nodes, xs, self._split(dy), strict=True) if nodes else ()
            return [product(primitives, node, x, part) for node, x, part in parts]
        return self._gates_of(primitives.rows_wgrad(xs[0], dy))

    def _of_biases(self, primitives, nodes, dy):
        if len(nodes) < 2 or self._layer.is_cell:
            parts = self._split(dy) if len(nodes) > 1 else [dy] * len(nodes)
            return [total(primitives, node, part, node.dtype) for node, part in zip(nodes, parts, strict=True)]
        return self._gates_of(primitives.bias_grad(dy, nodes[0].dtype))

    def _gates_of(self, gradient):
        return parts_of(gradient, range(self._units, len(gradient) + 1, self._units))

    def _split(self, dy):
        units = self._units
        return [dense(dy[:, gate * units : (gate + 1) * units]) for gate in range(self._layer.gates)]


class PackedSequences(Node):
    """Packs sequences x (T, C) step by step, see :class:`~mixprec.backends.recurrence.Recurrence`.

    Args:
        order: indices that sort them by falling length.
    """

    name = "pack_sequences"
    is_repeatable = True

    def __init__(self, order):
        self._order = order

    def check(self, *xs):
        for number, x in enumerate(xs):
            checks.dtype(self.name, f"xs[{number}]", x)
            checks.same_dtype(self.name, f"xs[{number}]", x, "xs[0]", xs[0])
            if x.ndim != 2 or x.shape[1] != xs[0].shape[1]:
                raise ValueError(f"{self.name}: xs[{number}] must be (T, {xs[0].shape[-1]}); found shape {x.shape}")

    def compute(self, primitives, *xs):
        self._lengths = tuple(map(len, xs))
        return (primitives.pack_sequences(xs, self._order),)

    def gradients(self, primitives, indexes, dy):
        return primitives.unpack_sequences(dy, self._lengths, self._order)


class UnpackedSequences(Node):
    """Returns the sequences of packed rows; arguments as of :class:`PackedSequences`, and their lengths."""

    name = "unpack_sequences"
    is_repeatable = True

    def __init__(self, order, lengths):
        self._order, self._lengths = order, lengths

    def compute(self, primitives, packed):
        self._units = packed.shape[1]
        return tuple(primitives.unpack_sequences(packed, self._lengths, self._order))

    def gradients(self, primitives, indexes, *dys):
        dys = with_zeros(dys, [(length, self._units) for length in self._lengths])
        return (primitives.pack_sequences(dys, self._order),)
