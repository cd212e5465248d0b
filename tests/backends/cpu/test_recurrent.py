"""Recurrent layers beside Chainer's gradients in FP64, and packed sequences: on NumPy, by CUDA kernels on the host."""

import chainer.functions as F
import numpy as np
import pytest
from chainer import Variable

from benchmarks.recording_device import null_device
from mixprec import backends
from mixprec.backends.device_log import recording
from mixprec.backends.recurrence import Recurrence
from tests.backends.primitive_cases import FLOAT16, FLOAT32, STORAGE, arrays, eps_of, exact
from tests.cases import pairs

UNITS, INPUTS = 17, 5
KINDS = ("lstm", "interleaved", "gru", "gru_reset_before", "tanh", "relu")
BIASES = (None, "storage", "float32", "one")
# Numbers of sequences: all of them, the last of which is empty, and in each step; and steps without any.
SIZES = ((6, (5, 5, 3, 1)), (3, ()), (4, (4,)))


def reference(layer, x, w, u, biases, h, c):
    """Returns y, h and c of a layer, one sequence after the other, as variables like those that it gets."""
    of_x, rows, ends = F.linear(x, w, biases[0]), {}, []
    for sequence in range(layer.batch):
        state = h[sequence : sequence + 1], c[sequence : sequence + 1]
        for first, count in layer.steps():
            if sequence < count:
                row = first + sequence
                state = step(layer, of_x[row : row + 1], u, biases[1], *state)
                rows[row] = state[0]
        ends.append(state)
    y = F.vstack([rows[row] for row in sorted(rows)]) if rows else Variable(np.zeros((0, UNITS)))
    return y, *(F.vstack(each) for each in zip(*ends, strict=True))


def step(layer, of_x, u, b, h, c):
    of_h = F.linear(h, u, b)
    if layer.kind == "lstm":
        gates = of_x + of_h
        if layer.interleaved:
            a, i, f, o = F.separate(gates.reshape(1, UNITS, 4), axis=2)
        else:
            i, f, a, o = F.split_axis(gates, 4, axis=1)
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(a)
        return F.sigmoid(o) * F.tanh(c), c
    if layer.kind.startswith("gru"):
        (r, z, a), (r_h, z_h, a_h) = (F.split_axis(each, 3, axis=1) for each in (of_x, of_h))
        r, z = F.sigmoid(r + r_h), F.sigmoid(z + z_h)
        if layer.kind == "gru":
            a = F.tanh(a + r * a_h)
            return (1 - z) * a + z * h, c
        a = F.tanh(a + F.linear(r * h, u[2 * UNITS :], None if b is None else b[2 * UNITS :]))
        return (1 - z) * h + z * a, c
    return getattr(F, layer.kind)(of_x + of_h), c


LAYERS = pairs(KINDS, STORAGE, (False, True), (True, False), BIASES, SIZES, (True, False))


@pytest.mark.parametrize(("kind", "dtype", "reverse", "has_states", "bias", "sizes", "has_dy"), LAYERS)
def test_a_layer_and_its_gradients(on_both, kind, dtype, reverse, has_states, bias, sizes, has_dy):
    rng = np.random.default_rng(0)
    layer = Recurrence(*("lstm" if kind == "interleaved" else kind, *sizes), reverse, kind == "interleaved")
    wide, is_lstm, states = layer.gates * UNITS, layer.kind == "lstm", (layer.batch, UNITS)
    x, w = arrays(rng, (layer.rows, INPUTS), dtype), arrays(rng, (wide, INPUTS), dtype, 0.4)
    u = arrays(rng, (wide, UNITS), dtype, 0.2)
    b_w, b_u = arrays(rng, (2, wide), FLOAT32 if bias == "float32" else dtype)
    biases = (None if bias is None else b_w, None if bias in (None, "one") else b_u)
    h, c = arrays(rng, (2, *states), dtype) if has_states else (None, None)
    dy = arrays(rng, (layer.rows, UNITS), dtype) if has_dy else None
    dh, dc = (arrays(rng, states, dtype), arrays(rng, states, dtype) if is_lstm and has_states else None)

    variables = x_, w_, u_, b_w_, b_u_, h_, c_ = [
        None if each is None else Variable(exact(each))
        for each in (x, w, u, *biases, *(np.zeros(states) if each is None else each for each in (h, c)))
    ]
    expected = reference(layer, x_, w_, u_, (b_w_, b_u_), h_, c_)
    weighted = zip(expected, (dy, dh, dc), strict=True)
    loss = sum(F.sum(each * exact(gradient)) for each, gradient in weighted if gradient is not None)
    loss.backward()
    if layer.is_cell and not has_states and len(layer.sizes) == 1:
        u = None
    y, last_h, last_c, saved = on_both.recurrent(x, w, u, biases, h, c if is_lstm else None, layer)
    given = dy, dh, dc, w, u, y if saved.gates is None else None, saved, layer
    dx, dp, dq, first_dh, first_dc = on_both.recurrent_backward(*given)
    assert [each.dtype for each in (y, last_h, dx, dp, dq, first_dh)] == 6 * [dtype]
    assert saved.cells is None or layer.is_single or saved.cells.dtype == FLOAT32
    if saved.states is None:  # of a device
        saved = saved._replace(states=np.zeros(states, dtype))
    du = on_both.rows_wgrad(saved.states, dq)
    if saved.reset is not None:
        du[2 * UNITS :] = on_both.rows_wgrad(saved.reset, dq[:, 2 * UNITS :].copy())
    found = y, last_h, dx, on_both.rows_wgrad(x, dp), du, exact(dp).sum(0), exact(dq).sum(0), first_dh
    right = [each.array for each in expected[:2]]
    right += [None if each is None else each.grad for each in variables[:6]]
    if is_lstm:
        found, right = (*found, last_c, first_dc), [*right, expected[2].array, c_.grad]
    for place, (one, other) in enumerate(zip(found, right, strict=True)):
        if u is None and place == 7:
            continue
        if other is None:  # a bias that is not there, or no way from there to the loss
            assert place in (5, 6) or not np.any(one)
            continue
        assert one.shape == other.shape
        np.testing.assert_allclose(
            exact(one), other, rtol=0, atol=8 * eps_of(dtype) * max(np.abs(other).max(initial=0), 1), err_msg=str(place)
        )
    assert on_both.recurrent_backward(*given, wants_dx=False, wants_states=False)[::3] == (None, None)


@pytest.mark.parametrize(("kind", "of_step"), [("lstm", 2), ("gru", 2), ("gru_reset_before", 4), ("relu", 2)])
def test_launches_of_a_layer(kind, of_step):
    """At most 4 T + 12 with joined weights and their gradients; a product takes one, and cells with ``reset`` more."""
    null_device.install()
    layer = Recurrence(kind, 5, (5, 5, 3, 2, 1, 1), reverse=True)
    wide = layer.gates * UNITS

    def new(*shape):
        return null_device.array(np.zeros(shape, FLOAT16))

    x, dy, h, c = (new(*shape) for shape in ((layer.rows, INPUTS), (layer.rows, UNITS), (5, UNITS), (5, UNITS)))
    parts = [[new(UNITS, *shape) for _ in range(layer.gates)] for shape in ((INPUTS,), (UNITS,), (), ())]
    primitives = backends.primitives_of(x)
    with recording() as log:
        w, u, *biases = map(primitives.concat_rows, parts)
        y, *_, saved = primitives.recurrent(x, w, u, biases, h, c, layer)
        forward = _launches(log)
        _, dp, dq, *_ = primitives.recurrent_backward(dy, h, c, w, u, y, saved, layer)
        primitives.rows_wgrad(x, dp)
        primitives.rows_wgrad(saved.states, dq)
        for gradient in {id(each): each for each in (dp, dq)}.values():
            primitives.bias_grad(gradient, FLOAT16)
    assert w.shape == (wide, INPUTS)
    steps = len(layer.sizes)
    assert forward == of_step * steps + 6
    assert _launches(log) <= 2 * of_step * steps + 12


def _launches(log):
    return sum(each.kind in ("kernel", "cudnn", "blas", "array", "copy") for each in log)


@pytest.mark.parametrize(("dtype", "channels"), [(FLOAT16, 5), (FLOAT16, 16), *((dtype, 8) for dtype in STORAGE[1:])])
@pytest.mark.parametrize("lengths", [(3, 0, 7, 7, 1), (0, 0), (500,), tuple(np.arange(300) % 7)], ids=len)
def test_packed_sequences(on_both, dtype, channels, lengths):
    """More than a launch takes, too: 256 sequences, 481 steps."""
    xs = [arrays(np.random.default_rng(0), (length, channels), dtype) for length in map(int, lengths)]
    order = tuple(sorted(range(len(xs)), key=lambda index: -lengths[index]))
    rows = [xs[index][t] for t in range(max(lengths)) for index in order if t < lengths[index]]
    packed = on_both.pack_sequences(tuple(xs), order)
    np.testing.assert_array_equal(exact(packed), exact(rows).reshape(-1, channels))
    assert packed.dtype == dtype
    found = on_both.unpack_sequences(packed, lengths, order)
    for one, x in zip(found, xs, strict=True):
        np.testing.assert_array_equal(exact(one), exact(x))
