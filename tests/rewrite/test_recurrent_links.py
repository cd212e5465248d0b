"""Recurrent links of converted models: results and gradients of plain Chainer, and when Chainer's own code runs."""

import collections
import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.link_hooks import SpectralNormalization

import mixprec
from mixprec.functions.recurrent import Recurrent
from mixprec.rewrite.trace import sizes_kept
from tests.graph_nodes import nodes_behind

LIMITS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}  # of gradients, relative to their norm
STACKS = {
    name: getattr(L, f"NStep{name}")
    for name in ("LSTM", "BiLSTM", "GRU", "BiGRU", "RNNTanh", "BiRNNTanh", "RNNReLU", "BiRNNReLU")
}
LENGTHS = (3, 7, 1, 5)
COLUMNS, UNITS = 6, 10
every_dtype = pytest.mark.parametrize("compute", LIMITS)


def drawn(seed, *shape):
    return np.random.RandomState(seed).normal(size=shape).astype(np.float32)


class Net(chainer.Chain):
    """A recurrent link, and what a program does with it: a function of (link, xs, states) that returns variables."""

    def __init__(self, link, program):
        super().__init__()
        self.program = program
        with self.init_scope():
            self.link = link

    def forward(self, xs, *states):
        return self.program(self.link, xs, *states)


def seeded(link, *args, program, **kwargs):
    np.random.seed(0)
    net = Net(link(*args, **kwargs), program)
    for index, param in enumerate(net.params()):
        if param.ndim == 1:
            param.array[...] = 0.3 * drawn(100 + index, *param.shape)
    return net


def step(net, xs, *states, scale=1.0):
    """Returns results and gradients by name, in float32."""
    xs, states = [chainer.Variable(x.copy()) for x in xs], [chainer.Variable(each.copy()) for each in states]
    net.cleargrads()
    ys = net(xs, *states)
    sum(F.sum(y * (0.1 * scale * drawn(50 + index, *y.shape))) for index, y in enumerate(ys)).backward()
    found = {f"x {index}": x.grad for index, x in enumerate(xs)} | {f"s {i}": s.grad for i, s in enumerate(states)}
    found |= {name: param.grad for name, param in net.namedparams()}
    found = {name: None if each is None else each.astype(np.float32) / scale for name, each in found.items()}
    return found | {f"y {index}": y.array for index, y in enumerate(ys)}


def assert_alike(found, expected, compute):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] is None) == (value is None), name
        if value is not None:
            assert np.linalg.norm(found[name] - value) <= LIMITS[compute] * np.linalg.norm(value), name


def nodes_of(ys):
    """Returns how often each class of function nodes is in a graph."""
    return collections.Counter(map(type, nodes_behind(*ys)))


def stack(use):
    """Returns a program for a stack of layers; ``use`` chooses from (last states, results)."""

    def program(link, xs, *states):
        states = states or [None] * (2 if link.n_cells == 2 else 1)
        *last, ys = link(*states, xs)
        return [last[0]] if use == "last" else [last[-1], *ys]

    return program


def states_of(link, layers=2):
    count = 2 if "LSTM" in link else 1
    return [drawn(20 + i, layers * (1 + link.startswith("Bi")), len(LENGTHS), UNITS) for i in range(count)]


@every_dtype
@pytest.mark.parametrize("given", ["zeros", "states", "last"])
@pytest.mark.parametrize("link", STACKS)
def test_stacks(link, given, compute):
    xs = [drawn(index, length, COLUMNS) for index, length in enumerate(LENGTHS)]
    states = states_of(link) if given == "states" else []
    plain = seeded(STACKS[link], 2, COLUMNS, UNITS, 0.0, program=stack(given))
    net = copy.deepcopy(plain)
    mixprec.convert(net, compute=compute)
    found, expected = step(net, xs, *states, scale=64.0), step(plain, xs, *states)
    if "ReLU" in link and compute != "float32":  # rounding moves numbers over its kink, where gradients jump
        found, expected = ({name: each[name] for name in each if name[0] == "y"} for each in (found, expected))
    assert_alike(found, expected, compute)
    counts = nodes_of(net(xs))
    assert counts[Recurrent] == 2 * (1 + link.startswith("Bi"))
    assert sum(counts.values()) <= 20 + len(xs)


def time_major(link, xs, *states):
    kind = type(link).__name__
    function = {"NStepLSTM": F.n_step_lstm, "NStepBiGRU": F.n_step_bigru, "NStepRNNReLU": F.n_step_rnn}[kind]
    rest = {"activation": "relu"} if kind == "NStepRNNReLU" else {}
    *last, ys = function(link.n_layers, 0.0, *states, link.ws, link.bs, F.transpose_sequence(list(xs)), **rest)
    return [*last, *ys]


@every_dtype
@pytest.mark.parametrize("link", ["LSTM", "BiGRU", "RNNReLU"])
def test_functions_over_steps(link, compute):
    xs = [drawn(index, length, COLUMNS) for index, length in enumerate((7, 4, 4, 1))]
    plain = seeded(STACKS[link], 2, COLUMNS, UNITS, 0.0, program=time_major)
    net = copy.deepcopy(plain)
    mixprec.convert(net, compute=compute)
    assert_alike(step(net, xs, *states_of(link), scale=64.0), step(plain, xs, *states_of(link)), compute)
    assert Recurrent in nodes_of(net(xs, *map(chainer.Variable, states_of(link))))


def stateful(link, xs):
    link.reset_state()
    return [link(x) for x in xs]


def stateless(link, xs, *states):
    ys = []
    for x in xs:
        states = link(*states, x)
        states = states if isinstance(states, tuple) else (states,)
        ys.append(states[-1])
    return [*ys, states[0]]


CELLS = {
    "LSTM": (L.LSTM, stateful, 0),
    "GRU": (L.GRU, stateful, 0),
    "StatefulGRU": (L.StatefulGRU, stateful, 0),
    "StatelessLSTM": (L.StatelessLSTM, stateless, 2),
    "StatelessGRU": (L.StatelessGRU, stateless, 1),
}


@every_dtype
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("cell", CELLS)
def test_cells(cell, steps, compute):
    link, program, count = CELLS[cell]
    xs, states = list(drawn(0, steps, 5, COLUMNS)), [drawn(20 + index, 5, UNITS) for index in range(count)]
    plain = seeded(link, COLUMNS, UNITS, program=program)
    net = copy.deepcopy(plain)
    mixprec.convert(net, compute=compute)
    assert_alike(step(net, xs, *states, scale=64.0), step(plain, xs, *states), compute)
    counts = nodes_of(net(xs, *map(chainer.Variable, states)))
    assert counts[Recurrent] == steps
    assert "Linear" not in {each.__name__ for each in counts}


class Scaled(L.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked(net):
    net.link.lateral.add_hook(SpectralNormalization())


def replaced(net):
    W = net.link.lateral.W.array
    del net.link.lateral
    with net.link.init_scope():
        net.link.lateral = Scaled(UNITS, 4 * UNITS, nobias=True, initialW=W)


def shrinking(net):
    net.program = lambda link, xs: stateful(link, [x[: 5 - index] for index, x in enumerate(xs)])


@pytest.mark.parametrize("change", [None, hooked, replaced, shrinking])
@pytest.mark.parametrize("how", [{}, {"layout": "nchw"}, {"keep_float32": ["/link/lateral"]}])
def test_where_chainers_own_cell_runs(how, change):
    plain = seeded(L.LSTM, COLUMNS, UNITS, program=stateful)
    if change is not None:
        change(plain)
    xs = list(drawn(0, 3, 5, COLUMNS))
    net = copy.deepcopy(plain)
    mixprec.convert(net, compute="float32", **how)
    assert_alike(step(net, xs), step(plain, xs), "float32")
    ours = 0 if how or change in (hooked, replaced) else 3 if change is None else 1
    assert nodes_of(net(xs))[Recurrent] == ours


def test_gradients_of_gradients_in_nchw():
    net = seeded(L.NStepGRU, 1, COLUMNS, UNITS, 0.0, program=stack("zeros"))
    mixprec.convert(net, compute="float32", layout="nchw")
    x = chainer.Variable(drawn(0, 3, COLUMNS))
    (gradient,) = chainer.grad([net([x])[1]], [x], enable_double_backprop=True)
    F.sum(gradient**2).backward()
    assert np.isfinite(x.grad).all()


@pytest.mark.parametrize("link", ["LSTM", "BiLSTM", "GRU"])
def test_memory_kept_for_the_backward_pass(link):
    xs = [drawn(index, length, 32) for index, length in enumerate((20, 30, 25))]
    plain = seeded(STACKS[link], 2, 32, 64, 0.1, program=stack("zeros"))
    net = copy.deepcopy(plain)
    report = mixprec.convert(net)
    before, after = sum(sizes_kept(plain(xs))), sum(sizes_kept(net(xs)))
    assert after <= 0.2 * before
    estimated, counted = report.activation_bytes
    assert counted == after
    assert 0.8 * before <= estimated <= 1.2 * before


def test_a_cell_keeps_no_matrices():
    xs = drawn(0, 8, 2, 64)
    plain = seeded(L.GRU, 64, 64, program=stateful)
    net = copy.deepcopy(plain)
    mixprec.convert(net)
    assert sum(sizes_kept(net(xs))) <= 0.6 * sum(sizes_kept(plain(xs)))


@pytest.mark.parametrize("link", [L.LSTM, L.GRU, L.NStepGRU])
def test_results_that_are_used_after_the_call_are_float32(link):
    program, args = (stateful, ()) if link is not L.NStepGRU else (stack("zeros"), (0.0,))
    net = seeded(link, *([1] if args else []), COLUMNS, UNITS, *args, program=program)
    kept = []
    net.program = lambda link, xs: kept.extend(program(link, xs)) or kept
    mixprec.convert(net, compute="float16")
    net([drawn(0, 3, COLUMNS)])
    assert [y.dtype for y in kept] == len(kept) * [np.float16]
    assert {(y * drawn(0, *y.shape)).dtype for y in kept} == {np.dtype(np.float32)}


@pytest.mark.parametrize("link", [L.LSTM, L.GRU])
def test_kfac_sees_the_layers_of_a_cell(link):
    """As it does where Chainer's own cell runs: with a hook."""
    found = []
    for hooks in ([], [chainer.LinkHook()]):
        net, kfac = seeded(link, COLUMNS, UNITS, program=stateful), mixprec.KFAC(0.1)
        mixprec.convert(net, compute="float32")
        for hook in hooks:
            getattr(net.link, "lateral" if link is L.LSTM else "U").add_hook(hook)
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(0.1), preconditioner=kfac).setup(net)
        optimizer.update(lambda net=net: sum(F.mean(y**2) for y in net(drawn(0, 3, 5, COLUMNS))))
        found.append(kfac.state() | {name: param.array for name, param in net.namedparams()})
    assert_alike(*found, "float32")


class FromOnes(L.NStepGRU):
    def init_hx(self, xs):
        return chainer.Variable(np.ones((self.n_layers, len(xs), self.out_size), np.float32))


def test_a_subclass_with_first_states_of_its_own():
    xs = [drawn(index, length, COLUMNS) for index, length in enumerate(LENGTHS)]
    plain = seeded(FromOnes, 2, COLUMNS, UNITS, 0.0, program=stack("zeros"))
    net = copy.deepcopy(plain)
    mixprec.convert(net, compute="float32")
    assert_alike(step(net, xs), step(plain, xs), "float32")


def test_dropout_between_layers():
    xs = [np.ones((20, COLUMNS), np.float32)] * 2
    net = seeded(L.NStepRNNReLU, 2, COLUMNS, 50, 0.5, program=stack("zeros"))
    net.link[1].w0.array[...] = np.eye(50)
    net.link[1].w1.array[...] = 0
    net.link[1].b0.array[...] = net.link[1].b1.array[...] = 0
    mixprec.convert(net)
    _, dropped, _ = net(xs)
    with chainer.using_config("train", False):
        _, kept, _ = net(xs)
    ratio = (dropped.array > 0).sum() / (kept.array > 0).sum()
    assert 0.4 < ratio < 0.6


def test_wrong_inputs_have_chainers_messages():
    net = seeded(L.NStepLSTM, 1, COLUMNS, UNITS, 0.0, program=stack("zeros"))
    mixprec.convert(net)
    with pytest.raises(ValueError, match="Inconsistent input size in input values and weight parameters: 7 != 6"):
        net([drawn(0, 3, COLUMNS + 1)])
    with pytest.raises(ValueError, match=r"recurrent: h must have shape \(2, 10\); found \(3, 10\)"):
        net([drawn(0, 3, COLUMNS)] * 2, drawn(0, 1, 3, UNITS), drawn(0, 1, 3, UNITS))
    net.program = lambda link, xs, h: F.n_step_lstm(1, 0.0, h, h, link.ws, link.bs, xs)[2]
    with pytest.raises(chainer.utils.type_check.InvalidType, match="cannot broadcast"):
        net([drawn(0, 3, COLUMNS)], drawn(0, 1, 2, UNITS))
    assert len(net(drawn(0, 4, 3, COLUMNS), drawn(0, 1, 3, UNITS))) == 4  # steps in one array


@pytest.mark.parametrize("link", ["LSTM", "NStepLSTM"])
def test_gradients_of_weights_are_computed_only_if_they_are_wanted(link, monkeypatch):
    args = (COLUMNS, UNITS) if link == "LSTM" else (1, COLUMNS, UNITS, 0.0)
    net = seeded(getattr(L, link), *args, program=stateful if link == "LSTM" else stack("zeros"))
    mixprec.convert(net, compute="float32")
    monkeypatch.setattr(Recurrent, "_of_matrices", None)
    monkeypatch.setattr(Recurrent, "_of_biases", None)
    x = chainer.Variable(drawn(0, 3, COLUMNS))
    (gradient,) = chainer.grad([F.sum(net([x])[-1])], [x])
    assert np.linalg.norm(gradient.array) > 0


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_rows_of_any_dtype_are_joined_and_split(dtype):
    def program(link, xs):
        whole = F.concat(xs, axis=0)
        return [whole, *F.split_axis(whole, [2, 2, 5], 0)]

    net = seeded(L.Linear, 3, 2, program=program)
    mixprec.convert(net)
    xs = [np.arange(12).reshape(4, 3).astype(dtype), np.ones((3, 3), dtype)]
    with chainer.using_config("type_check", True):
        ys = net(xs)
    for y, right in zip(ys, [np.concatenate(xs), *np.split(np.concatenate(xs), [2, 2, 5])], strict=True):
        np.testing.assert_array_equal(y.array, right)
