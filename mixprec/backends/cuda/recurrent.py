"""Recurrent layers on a CUDA device: in each step a product of its states, then a kernel for all that comes after it.

Products are by cuBLAS and not by plans of cuDNN: from step to step, and from batch to batch, numbers of rows change.
"""

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.recurrence import GATES, Recurred

_FLOAT = np.dtype(np.float32)
_KINDS = tuple(GATES)  # as in recurrent.cuh


class Recurrents(Base):
    """The recurrent layers of :class:`~mixprec.backends.primitives.Primitives`."""

    def recurrent(self, x, w, u, biases, h, c, layer):
        wide, dtype, is_lstm = len(w), x.dtype, layer.kind == "lstm"
        units = wide // layer.gates
        packed, batch = (layer.rows, units), (layer.batch, units)
        is_single = layer.is_single and (h is not None or u is None)  # its states are the first ones
        y = self._empty(packed, dtype)
        states, last_h = (h, y) if is_single else (self._empty(packed, dtype), self._empty(batch, dtype))
        cells = self._empty(packed, _FLOAT) if is_lstm and not is_single else None
        last_c = self._empty(batch, dtype) if is_lstm else None
        gates = self._empty((layer.rows, layer.saved * units), dtype) if layer.saved else None
        reset = self._empty(packed, dtype) if layer.kind == "gru_reset_before" else None
        of_x, of_h = (self._empty((count, wide), _FLOAT) for count in (layer.rows, layer.batch))
        inputs = x.shape[1]
        self._product((x, 0, inputs), (w, 0, inputs), (of_x, 0, wide), (layer.rows, wide, inputs), (False, True))

        turns = layer.turns()
        varying = [(0, 0, *(turns[0][:2] if turns else (0, 0)), layer.batch, 0)]  # the first states, of all sequences
        for (first, count, before, after), (following, *_) in zip(turns, [*turns[1:], (0,)], strict=False):
            terms = of_h if before or h is not None else None
            varying.append((first, count, following, after, max(count, after), self._address_or_0(terms)))
        other = _FLOAT if any(each is not None and each.dtype == _FLOAT for each in biases) else dtype
        biases = [None if each is None else self.cast(each, other) for each in biases]
        arrays = of_x, *biases, y, gates, states, cells, reset, h, c, last_h, last_c
        tables = self._tables(varying, layer, units, *arrays)

        def launch(name, table):
            blocks = ceil_div(int(table[4]) * units, self.launcher.threads)
            self.kernels.launch("recurrent", name, blocks, [table], dtype, other=other)

        def multiply(source, first, count, gate, end):
            """Computes terms of the states of a step, of the gates from one to another."""
            a, b, target = (source, first * units, units), (u, gate * units**2, units), (of_h, gate * units, wide)
            self._product(a, b, target, (count, (end - gate) * units, units), (False, True))

        if not is_single:
            launch("recurrent_forward", tables[0])
        for (first, count, before, _), table in zip(turns, tables[1:], strict=True):
            has_terms = before or h is not None
            if has_terms:
                multiply(states, first, count, 0, 2 if reset is not None else layer.gates)
            if reset is not None:
                launch("recurrent_reset", table)
                if has_terms:
                    multiply(reset, first, count, 2, 3)
            launch("recurrent_forward", table)
        return y, last_h, last_c, Recurred(gates, states, c if is_single else cells, reset)

    def recurrent_backward(self, dy, dh, dc, w, u, y, saved, layer, *, wants_dx=True, wants_states=True):
        wide, dtype, is_lstm = len(w), w.dtype, layer.kind == "lstm"
        units = wide // layer.gates
        is_wide = saved.cells is not None and saved.cells.dtype == _FLOAT
        of_cells = (saved.cells, None) if is_wide else (None, saved.cells)
        is_single = layer.gates != 3 and layer.is_single  # of its states the products are the gradients
        first_dh = self._empty((layer.batch, units), dtype) if wants_states else None
        first_dc = self._empty((layer.batch, units), dtype) if is_lstm and (wants_states or is_single) else None
        of_x = self._empty((layer.rows, wide), dtype)
        of_h = self._empty(of_x.shape, dtype) if layer.kind == "gru" else of_x
        of_state, of_cell, of_reset = (
            self._empty((layer.batch, units), _FLOAT) if is_there else None
            for is_there in (not is_single, is_lstm and not is_single, saved.reset is not None and u is not None)
        )
        turns = layer.turns()[::-1]
        varying = [(first, count, after) for first, count, _, after in turns]
        varying.append((0, layer.batch, max(layer.sizes, default=0)))  # what has run, and all sequences
        arrays = dy, y, saved.gates, saved.states, of_cells[0], dh, dc, of_x, of_h, of_state, of_cell, of_reset
        arrays = *arrays, of_cells[1], first_dc if is_single else None
        tables = self._tables(varying, layer, units, *arrays)

        def launch(name, table, *arguments):
            blocks = ceil_div(int(table[1]) * units, self.launcher.threads)
            self.kernels.launch("recurrent_backward", name, blocks, [table, *arguments], dtype)

        def multiply(target, first, count, gate, end, beta):
            """Adds to gradients of the states the part that comes through the gates from one to another."""
            a, b = (of_h, first * wide + gate * units, wide), (u, gate * units**2, units)
            self._product(a, b, (target, 0, units), (count, units, (end - gate) * units), beta=beta)

        for (first, count, before, _), table in zip(turns, tables, strict=False):
            launch("recurrent_backward", table)
            if saved.reset is not None:
                if u is not None:
                    multiply(of_reset, first, count, 2, 3, 0)
                launch("recurrent_reset_backward", table)
            if before or (wants_states and u is not None):
                end = 2 if saved.reset is not None else layer.gates
                multiply(first_dh if is_single else of_state, first, count, 0, end, int(layer.gates == 3))
        dx = None
        if wants_states and not is_single:
            launch("recurrent_states_backward", tables[-1], first_dh, first_dc)
        elif wants_states and u is None:
            self.launcher.zero(first_dh)
        if wants_dx:
            dx = self._empty((layer.rows, w.shape[1]), dtype)
            self._product((of_x, 0, wide), (w, 0, w.shape[1]), (dx, 0, w.shape[1]), (*dx.shape, wide))
        return dx, of_x, of_h, first_dh, first_dc if wants_states else None

    def rows_wgrad(self, x, dy):
        dw = self._empty((dy.shape[1], x.shape[1]), x.dtype)
        if not len(x):
            self.launcher.zero(dw)
        layouts = ((each, 0, max(each.strides[0] // each.itemsize, each.shape[1])) for each in (dy, x, dw))
        self._product(*layouts, (*dw.shape, len(x)), transposed=(True, False))
        return dw

    def _tables(self, varying, layer, units, *arrays):
        """Returns the ``Step`` of each launch, as of the kernels, a row (numbers) each.

        Args:
            varying: the numbers with which each begins.
            layer: :class:`~mixprec.backends.recurrence.Recurrence`.
            units: H.
            *arrays: the arrays with which all end, or ``None``.
        """
        gates = _KINDS.index(layer.kind), units, layer.gates, layer.kind == "lstm" and layer.interleaved
        tables = np.empty((len(varying), len(varying[0]) + len(gates) + len(arrays)), np.int64)
        tables[:, : len(varying[0])] = varying
        tables[:, len(varying[0]) :] = *gates, *map(self._address_or_0, arrays)
        return tables

    def _product(self, a, b, c, sizes, transposed=(False, False), beta=0):
        """``c = a b + beta c``; each is ``(array, its first element, elements from one row to the next)``."""
        layouts = [(self._address(array) + first * array.itemsize, step) for array, first, step in (a, b, c)]
        dtypes = a[0].dtype, c[0].dtype
        self.matrices.product(*layouts, sizes, dtypes, transposed=transposed, beta=beta)
