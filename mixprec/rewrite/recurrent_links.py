"""Recurrent links and functions of converted models: one node a layer and direction, or a step of a cell.

Chainer's own code runs where a rule does not fit: in ``layout="nchw"``, whose gradients can be differentiated again,
for parts that are hooked, not initialized or not ``L.Linear``, for subclasses with ``rnn`` or ``init_hx`` of their own,
and for arguments that it refuses by its own messages.
"""

import chainer
import chainer.links as L
from chainer.links.rnn.n_step_rnn import NStepRNNBase

from mixprec.backends.recurrence import Recurrence, sizes_of
from mixprec.base.dtypes import STORAGE_DTYPES
from mixprec.compat.registry import patch_around
from mixprec.functions import n_step
from mixprec.functions.recurrent import Recurrent
from mixprec.precision.conversion_state import active, state_of
from mixprec.precision.weight_copies import as_computed
from mixprec.rewrite.outside import COMPUTED

_WHEN = "mixprec.convert"
_KINDS = {"LSTM": "lstm", "GRU": "gru", "RNNTanh": "tanh", "RNNReLU": "relu"}
KINDS = {getattr(L, f"NStep{bi}{name}").rnn: kind for name, kind in _KINDS.items() for bi in ("", "Bi")}


@patch_around("chainer.links.rnn.n_step_rnn:NStepRNNBase._call", when=_WHEN)
def n_step_link(original, self, hs, xs, **kwargs):
    """Without it ``L.NStepLSTM`` and the like transpose lists, and compute several nodes for each gate and step."""
    scope, kind = active.scope, KINDS.get(type(self).rnn) if type(self).init_hx is NStepRNNBase.init_hx else None
    if kind is None or kwargs or not _takes(scope) or not n_step.fits(hs, self.ws, self.bs, xs):
        return original(self, hs, xs, **kwargs)
    _note(Recurrence(kind, len(xs), sizes_of([len(x) for x in xs])), self.ws)
    computed = _computed(scope, hs, self.ws, self.bs, xs)
    states, ys = n_step.Stack(kind, self.dropout, self.direction).over_sequences(*computed)
    return states, _marked(ys)


@patch_around(
    "chainer.functions.rnn.{n_step_lstm:n_step_lstm_base,n_step_gru:n_step_gru_base,n_step_rnn:n_step_rnn_base}",
    when=_WHEN,
)
def n_step_function(original, *args, **kwargs):
    """Without it ``F.n_step_lstm`` and the like compute several nodes for each gate and step."""
    scope = active.scope
    call = n_step.Call(original, args, kwargs) if _takes(scope) else None
    if call is None or not call.fits():
        return original(*args, **kwargs)
    _note(Recurrence(call.stack.kind, len(call.xs[0]), tuple(map(len, call.xs))), call.ws)
    *states, ys = call.run(*_computed(scope, call.states, call.ws, call.bs, call.xs))
    return *states, _marked(ys)


@patch_around("chainer.links.rnn.lstm:LSTM.forward", when=_WHEN)
def lstm(original, self, x):
    """Without it an ``L.LSTM`` is two linear layers, an addition and ``F.lstm`` in each step."""
    if not _fits(self, "upward", "lateral", given=(x, self.h, self.c)):
        return original(self, x)
    self.c, self.h = _lstm(self, self.c, self.h, x)
    return self.h


@patch_around("chainer.links.rnn.lstm:StatelessLSTM.forward", when=_WHEN)
def stateless_lstm(original, self, c, h, x):
    """Without it an ``L.StatelessLSTM`` is two linear layers, an addition and ``F.lstm`` in each step."""
    fits = _fits(self, "upward", "lateral", given=(x, h, c))
    return _lstm(self, c, h, x) if fits else original(self, c, h, x)


@patch_around("chainer.links.rnn.gru:StatefulGRU.forward", when=_WHEN)
def stateful_gru(original, self, x):
    """Without it an ``L.GRU`` is six linear layers and nine other functions in each step."""
    if not _fits(self, *_GRU_W, *_GRU_U, given=(x, self.h)):
        return original(self, x)
    self.h = _gru(self, self.h, x)
    return self.h


@patch_around("chainer.links.rnn.gru:StatelessGRU.forward", when=_WHEN)
def stateless_gru(original, self, h, x):
    """Without it an ``L.StatelessGRU`` is six linear layers and nine other functions in each step."""
    fits = h is not None and _fits(self, *_GRU_W, *_GRU_U, given=(x, h))
    return _gru(self, h, x) if fits else original(self, h, x)


_GRU_W, _GRU_U = ("W_r", "W_z", "W"), ("U_r", "U_z", "U")


def _lstm(link, c, h, x):
    upward, lateral = link.upward, link.lateral
    u = [] if h is None else [lateral.W]
    biases = [] if upward.b is None else [upward.b]
    y, c = _cell("lstm", x, (h, c), ([upward.W], u, biases, []), lateral.W)
    return c, y


def _gru(link, h, x):
    inputs, states = ([getattr(link, name) for name in names] for names in (_GRU_W, _GRU_U))
    if h is None:
        states = []
    groups = [[part.W for part in inputs], [part.W for part in states]]
    groups += [[part.b for part in parts if part.b is not None] for parts in (inputs, states)]
    return _cell("gru_reset_before", x, (h, None), groups, link.U.W)[0]


def _cell(kind, x, states, groups, u):
    """Computes a step of a cell, a :class:`~mixprec.functions.recurrent.Recurrent`; u is one of its matrices."""
    scope = active.scope
    layer = Recurrence(kind, len(x), (len(x),), interleaved=kind == "lstm")
    _note(layer, [(groups[0][0], u)])
    has = tuple(state is not None for state in states)
    inputs = [x, *(state for state in states if state is not None), *(each for group in groups for each in group)]
    node = Recurrent(layer, u.shape[1], has, tuple(map(len, groups)))
    return _marked(node.apply(scope.to_compute(as_computed(scope, inputs))))


def _marked(ys):
    """Returns results; functions outside of the call get them in float32, see :mod:`mixprec.rewrite.outside`."""
    for y in ys:
        y.__dict__[COMPUTED] = True
    return ys


def _fits(link, *parts, given):
    """Whether a cell is computed by one node: with its linear layers, called with x and states or ``None``."""
    scope = active.scope
    if not _takes(scope) or chainer._get_link_hooks():
        return False
    x = given[0]
    for name in parts:
        part = getattr(link, name)
        state = state_of(part)
        if type(part) is not L.Linear or state is None or state.keeps_float32 is not scope.keeps_float32:
            return False
        if part._n_local_link_hooks or part.W.array is None or part.W.dtype not in STORAGE_DTYPES:
            return False
    units, columns = getattr(link, parts[-1]).W.shape[1], getattr(link, parts[0]).W.shape[1]
    if x.ndim != 2 or x.shape[1] != columns or not len(x):
        return False
    shapes = all(state is None or state.shape == (len(x), units) for state in given[1:])
    return shapes and all(each is None or each.dtype in STORAGE_DTYPES for each in given)


def _note(layer, ws):
    if active.scope.trace is not None:
        active.scope.trace.note_recurrent(layer, [(w[0].shape[1], w[-1].shape[1]) for w in ws])


def _takes(scope):
    return scope is not None and scope.nhwc


def _computed(scope, states, ws, bs, xs):
    """Returns the arguments of a stack of layers in the compute dtype."""
    states = [None if state is None else scope.to_compute((state,))[0] for state in states]
    ws, bs = ([scope.to_compute(as_computed(scope, layer)) for layer in layers] for layers in (ws, bs))
    return states, ws, bs, scope.to_compute(xs)


PATCHES = n_step_link, n_step_function, lstm, stateless_lstm, stateful_gru, stateless_gru
