"""Recurrent layers on NumPy: the gates of a step are a few operations on all of its rows.

Every activation is a hyperbolic tangent: a sigmoid is ``tanh(x / 2) / 2 + 1 / 2``, as in Chainer.
"""

import functools

import numpy as np

from mixprec.backends.cpu.blocks import narrow, widen
from mixprec.backends.recurrence import Recurred

_quiet = np.errstate(over="ignore", invalid="ignore")
_ONE = np.float32(1)


class Recurrents:
    """The recurrent layers of :class:`~mixprec.backends.primitives.Primitives`."""

    @_quiet
    def recurrent(self, x, w, u, biases, h, c, layer):
        """See :meth:`~mixprec.backends.primitives.Primitives.recurrent`."""
        walk = _Walk(self, layer, u, len(w) // layer.gates, x.dtype)
        gates = self.linear(widen(x), widen(w))
        of_x, of_h = (None if b is None else widen(b) for b in biases)
        if of_h is not None and layer.kind != "gru":
            of_x, of_h = of_h if of_x is None else of_x + of_h, None
        if of_x is not None:
            gates += of_x
        walk.h, walk.c = walk.start(h), walk.start(c)
        y, states = walk.empty(), walk.empty()
        cells = np.empty(y.shape, np.float32) if layer.kind == "lstm" else None
        step = getattr(walk, layer.kind)
        for first, count in layer.steps():
            part = slice(first, first + count)
            before = walk.h[:count]
            states[part] = before if y.dtype == np.float32 else narrow(before, y.dtype)
            if cells is not None:
                cells[part] = walk.c[:count]
            after = step(gates[part], before, of_h, part)
            y[part] = rounded = narrow(after, y.dtype)
            walk.h[:count] = widen(rounded)
        saved = walk.saved(gates)
        c = None if cells is None else narrow(walk.c, y.dtype)
        return y, narrow(walk.h, y.dtype), c, Recurred(saved, states, cells, walk.reset)

    @_quiet
    def recurrent_backward(self, dy, dh, dc, w, u, y, saved, layer, *, wants_dx=True, wants_states=True):
        """See :meth:`~mixprec.backends.primitives.Primitives.recurrent_backward`."""
        back = _Back(self, layer, u, saved.states.shape[1], y, saved)
        back.h, back.c = back.start(dh), back.start(dc)
        step = getattr(back, layer.kind)
        for first, count in reversed(layer.steps()):
            part = slice(first, first + count)
            step(back.h[:count] if dy is None else back.h[:count] + widen(dy[part]), part, count)
        dtype = saved.states.dtype
        of_x = narrow(back.of_x, dtype)
        of_h = of_x if back.of_h is back.of_x else narrow(back.of_h, dtype)
        dx = self.linear_dgrad(of_x, w) if wants_dx else None
        dh, dc = (narrow(back.h, dtype), narrow(back.c, dtype)) if wants_states else (None, None)
        return dx, of_x, of_h, dh, dc if layer.kind == "lstm" else None

    def rows_wgrad(self, x, dy):
        """See :meth:`~mixprec.backends.primitives.Primitives.rows_wgrad`."""
        return self.linear_wgrad(x, dy)


class _Pass:
    """What both passes over a layer share.

    Args:
        primitives: what multiplies matrices of float32.
        layer: :class:`~mixprec.backends.recurrence.Recurrence`.
        u: weights (G H, H) of the states, or ``None`` if there is only a first step from zeros.
        units: H.
    """

    def __init__(self, primitives, layer, u, units):
        self.primitives, self.layer, self.units = primitives, layer, units
        self.u = None if u is None else widen(u)

    def start(self, state):
        """Returns a state (B, H) in float32, which the walk changes; zeros for ``None``."""
        if state is None:
            return np.zeros((self.layer.batch, self.units), np.float32)
        return state.copy() if state.dtype == np.float32 else widen(state)

    def product(self, states, rows=slice(None)):
        """Returns the products of states (rows, H) with some rows of u, zeros without u."""
        return np.float32(0) if self.u is None else self.primitives.linear(states, self.u[rows])

    def back(self, gates, rows=slice(None)):
        """Returns the products of gradients of some gates with their rows of u."""
        return self.primitives.linear_dgrad(gates, self.u[rows])

    def split(self, gates):
        """Returns a view (gates, rows, H) of the gates of rows, which lie next to each other."""
        rows, columns = gates.shape
        if self.layer.interleaved:
            return gates.reshape(rows, self.units, columns // self.units).transpose(2, 0, 1)
        return gates.reshape(rows, columns // self.units, self.units).swapaxes(0, 1)

    def lstm_gates(self, gates):
        """Returns the views of the input, forget, candidate and output gate."""
        parts = self.split(gates)
        return [parts[index] for index in self.layer.order]


class _Walk(_Pass):
    """The forward pass. Methods with the name of a kind do a step: they turn its gates into activations in place.

    They get the gates' terms of the inputs, the state, the bias of the state's products, and the step's rows as a
    slice, and return the next state.

    Attributes:
        h, c: the states (B, H) float32.
    """

    def __init__(self, primitives, layer, u, units, dtype):
        super().__init__(primitives, layer, u, units)
        self._dtype = dtype
        self._kept = self.reset = None
        if layer.kind == "gru":
            self._kept = np.empty((layer.rows, 4 * self.units), np.float32)
        elif layer.kind == "gru_reset_before":
            self.reset = self.empty()

    def empty(self):
        """Returns a new array (rows, H) in the storage dtype."""
        return np.empty((self.layer.rows, self.units), self._dtype)

    def saved(self, gates):
        """Returns the gates that the backward pass needs, in the storage dtype."""
        if not self.layer.saved:
            return None
        return narrow(gates if self._kept is None else self._kept, self._dtype)

    def lstm(self, gates, h, bias, part):
        gates += self.product(h)
        _activate(gates, *_lstm_scale(self.units, self.layer.interleaved))
        i, f, a, o = self.lstm_gates(gates)
        c = self.c[: len(h)]
        c *= f
        c += i * a
        return o * np.tanh(c)

    def gru(self, gates, h, bias, part):
        terms = self.product(h)
        if bias is not None:
            terms += bias
        units = self.units
        kept = self._kept[part]
        kept[:, : 2 * units] = _sigmoid(gates[:, : 2 * units] + terms[:, : 2 * units])
        r, z, a, term = self.split(kept)
        term[...] = terms[:, 2 * units :]
        np.tanh(gates[:, 2 * units :] + r * term, out=a)
        return a + z * (h - a)

    def gru_reset_before(self, gates, h, bias, part):
        two = 2 * self.units
        gates[:, :two] = _sigmoid(gates[:, :two] + self.product(h, slice(two)))
        r, z, a = self.split(gates)
        self.reset[part] = reset = narrow(r * h, self._dtype)
        np.tanh(a + self.product(widen(reset), slice(two, None)), out=a)
        return h + z * (a - h)

    def tanh(self, gates, h, bias, part):
        gates += self.product(h)
        return np.tanh(gates, out=gates)

    def relu(self, gates, h, bias, part):
        gates += self.product(h)
        return np.maximum(gates, 0, out=gates)


class _Back(_Pass):
    """The backward pass. Methods with the name of a kind do a step, from the gradient of its result to its gates'.

    Attributes:
        h, c: gradients of the states (B, H) float32.
        of_x, of_h: gradients (rows, G H) float32 of the gates' terms of inputs and of states; of an LSTM and a plain
            layer one array. Before a step they hold the factors of its gradients.
    """

    def __init__(self, primitives, layer, u, units, y, saved):
        super().__init__(primitives, layer, u, units)
        getattr(self, f"_{layer.kind}_factors", self._factors)(y, saved)
        self._parts = self.split(self.of_x)

    def _lstm_factors(self, y, saved):
        gates = widen(saved.gates)
        i, f, a, o = self.lstm_gates(gates)
        cells = saved.cells
        out = np.tanh(f * cells + i * a)
        self.of_x = self.of_h = np.empty_like(gates)
        of_i, of_f, of_a, of_o = self.lstm_gates(self.of_x)
        of_i[...] = a * i * (_ONE - i)
        of_f[...] = cells * f * (_ONE - f)
        of_a[...] = i * (_ONE - a * a)
        of_o[...] = out * o * (_ONE - o)
        self._forget, self._cell = f, o * (_ONE - out * out)

    def lstm(self, dh, part, count):
        dc = self.c[:count]
        dc += dh * self._cell[part]
        gates, parts = self.of_x[part], self._parts[:, part]
        parts[:3] *= dc
        parts[3] *= dh  # the output gate is the last one in both orders
        dc *= self._forget[part]
        if self.u is not None:
            self.h[:count] = self.back(gates)

    def _gru_factors(self, y, saved):
        r, z, a, *terms = self.split(widen(saved.gates))
        states, is_before = widen(saved.states), self.layer.kind == "gru_reset_before"
        self.of_x = self.of_h = np.empty((len(r), 3 * self.units), np.float32)
        if not is_before:
            self.of_h = np.empty_like(self.of_x)
        of_r, of_z, of_a = self.split(self.of_x)
        of_r[...] = (states if is_before else terms[0]) * r * (_ONE - r)
        of_z[...] = (a - states if is_before else states - a) * z * (_ONE - z)
        of_a[...] = (z if is_before else _ONE - z) * (_ONE - a * a)
        self._reset, self._kept = r, _ONE - z if is_before else z

    _gru_reset_before_factors = _gru_factors

    def gru(self, dh, part, count):
        of_r, of_z, of_a = self._parts[:, part]
        of_a *= dh
        of_z *= dh
        of_r *= of_a
        of_h = self.of_h[part]
        of_h[...] = self.of_x[part]
        of_h[:, 2 * self.units :] *= self._reset[part]
        self.h[:count] = self.back(of_h) + dh * self._kept[part]

    def gru_reset_before(self, dh, part, count):
        two = 2 * self.units
        gates, (of_r, of_z, of_a) = self.of_x[part], self._parts[:, part]
        of_a *= dh
        of_z *= dh
        if self.u is None:
            of_r[...] = 0
            return
        of_reset = self.back(np.ascontiguousarray(of_a), slice(two, None))
        of_r *= of_reset
        of_h = self.back(gates[:, :two].copy(), slice(two))
        self.h[:count] = of_h + dh * self._kept[part] + of_reset * self._reset[part]

    def _factors(self, y, saved):
        y, is_tanh = widen(y), self.layer.kind == "tanh"
        self.of_x = self.of_h = _ONE - y * y if is_tanh else (y > 0).astype(np.float32)

    def tanh(self, dh, part, count):
        gates = self.of_x[part]
        gates *= dh
        self.h[:count] = self.back(gates)

    relu = tanh


def _sigmoid(x):
    x *= np.float32(0.5)
    np.tanh(x, out=x)
    x *= np.float32(0.5)
    x += np.float32(0.5)
    return x


def _activate(gates, scale, shift):
    gates *= scale
    np.tanh(gates, out=gates)
    gates *= scale
    gates += shift


@functools.lru_cache
def _lstm_scale(units, interleaved):
    """Returns rows (4 H,) of factors and of terms that make sigmoids of hyperbolic tangents."""
    candidate = np.zeros((units, 4) if interleaved else (4, units), bool)
    candidate[(slice(None), 0) if interleaved else 2] = True
    scale = np.where(candidate.reshape(-1), _ONE, np.float32(0.5))
    return scale, _ONE - scale
