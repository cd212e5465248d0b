"""Gradients of parameters that several functions use: how often they are computed, beside those computed at once."""

import contextlib

import chainer
import chainer.functions as CF
import numpy as np
import pytest

import mixprec
from mixprec import functions as F
from mixprec.backends import primitives_of
from mixprec.distributed import readiness
from mixprec.functions import layer_gradients, pending, sums
from mixprec.functions.linear import EmbedID
from tests.functions.nhwc import DTYPES, assert_rounded, normal, wide

TIMES = 5
LABELS = [np.random.RandomState(seed).randint(-1, 7, (3, 1)) for seed in range(TIMES)]


class _AddsItself(chainer.FunctionNode):
    """Twice its input, to whose gradient it adds its own."""

    def forward(self, inputs):
        return (inputs[0] * 2,)

    def backward_accumulate(self, indexes, grad_outputs, grad_inputs):
        return (grad_inputs[0] + grad_outputs[0] * 2,)


def _layers(xs, W, b, E):
    return [F.linear(x, W, b) for x in xs]


def _embeddings(xs, W, b, E):
    return [EmbedID(-1).apply((t, E))[0] for t in LABELS]


def _tied(xs, W, b, E):
    return [*_embeddings(xs, W, b, E), *[F.linear(x, E) for x in xs]]


def _beside_another_function(xs, W, b, E):
    return [*_layers(xs, W, b, E), W * 3]


def _beside_one_that_adds(xs, W, b, E):
    return [*_layers([CF.identity(x) for x in xs], W, b, E), *_AddsItself().apply((W,))]


def _forgotten(xs, W, b, E):
    return [CF.forget(lambda x: F.linear(x, W, b), x) for x in xs]


def _recomputed(xs, W, b, E):
    return mixprec.recompute(lambda *xs: tuple(_layers(xs, W, b, E)))(*xs)


def _unchained(xs, W, b, E):
    first, *rest = _layers(xs, W, b, E)
    first.unchain_backward()
    return [first * 1, *rest]


def _once(xs, W, b, E):
    return _layers(xs[:1], W, b, E)


# program: products, sums, gradients of tables
PROGRAMS = {
    _layers: (1, 1, 0),
    _embeddings: (0, 0, 1),
    _tied: (1, 0, 1),
    _beside_another_function: (1, 1, 0),
    _beside_one_that_adds: (1, 1, 0),
    _forgotten: (TIMES, TIMES, 0),  # each in a pass of its own
    _recomputed: (1, 1, 0),
    _unchained: (1, 1, 0),
    _once: (1, 1, 0),
}


@pytest.fixture
def computed(monkeypatch):
    """Names of the primitives that computed gradients."""
    found, kind = [], type(primitives_of(np.ones(1)))

    def noted(name, primitive):
        return lambda *args, **kwargs: found.append(name) or primitive(*args, **kwargs)

    for name in ("linear_wgrad", "bias_grad", "embed_backward"):
        monkeypatch.setattr(kind, name, noted(name, getattr(kind, name)))
    return found


def _run(program, dtype=np.float32, passes=1, backward=chainer.backward):
    """Returns the gradients of parameters after passes over graphs that were made before."""
    params = [chainer.Parameter(normal(9, *shape, dtype=dtype)) for shape in ((4, 6), (4,), (7, 6))]
    graphs = []
    for _ in range(passes):
        graphs.append(program([chainer.Variable(normal(seed, 3, 6, dtype=dtype)) for seed in range(TIMES)], *params))
        for seed, y in enumerate(graphs[-1]):
            y.grad = normal(seed + TIMES, *y.shape, dtype=dtype)
    for ys in graphs:
        backward(ys)
    return [param.grad for param in params if param.grad is not None]


def _at_once(monkeypatch, *args, **kwargs):
    with monkeypatch.context() as patched:
        patched.setattr(sums, "_uses", lambda outputs: {})
        return _run(*args, **kwargs)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_is_computed_once_a_pass(program, passes, computed, monkeypatch):
    expected = _at_once(monkeypatch, program, passes=passes)
    computed.clear()
    found = _run(program, passes=passes)
    counts = [computed.count(name) for name in ("linear_wgrad", "bias_grad", "embed_backward")]
    assert counts == [passes * count for count in PROGRAMS[program]]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_rounded_once(dtype):
    (dW, db), (dE,) = _run(_layers, dtype), _run(_embeddings, dtype)
    x = wide(np.concatenate([normal(seed, 3, 6, dtype=dtype) for seed in range(TIMES)]))
    dy, of_rows = (
        wide(np.concatenate([normal(seed + TIMES, 3, *shape, dtype=dtype) for seed in range(TIMES)]))
        for shape in ((4,), (1, 6))
    )
    chosen = np.equal.outer(np.arange(7), np.ravel(LABELS))
    assert_rounded(dW, dy.T @ x, dtype, 1e-5)
    assert_rounded(db, dy.sum(0), dtype, 1e-5)
    assert_rounded(dE, chosen @ of_rows[:, 0], dtype, 1e-5)


def _debug():
    return chainer.using_config("debug", True)


def _observed():
    return layer_gradients.observing(type("Observer", (), {"filters": lambda *args: None})())


def _grad(ys):
    params = {x for y in ys for x in y.creator_node.inputs if isinstance(x.get_variable_or_none(), chainer.Parameter)}
    params = [x.get_variable() for x in params]
    gradients = chainer.grad(ys, params, [y.grad_var for y in ys])
    for param, gradient in zip(params, gradients, strict=True):
        assert type(gradient) is chainer.Variable
        param.grad = CF.identity(gradient).array


@pytest.mark.parametrize(
    ("around", "backward"),
    [
        (chainer.function_hooks.TimerHook, chainer.backward),
        (_debug, chainer.backward),
        (_observed, chainer.backward),
        (contextlib.nullcontext, _grad),
    ],
)
def test_where_others_look_on_it_is_computed_at_once(around, backward, computed, monkeypatch):
    expected = _at_once(monkeypatch, _layers)
    computed.clear()
    with around():
        found = _run(_layers, backward=backward)
    assert len(computed) == 2 * TIMES
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_many_rows_are_computed_in_between(computed, monkeypatch):
    expected = _run(_layers)
    computed.clear()
    monkeypatch.setattr(pending, "_MOST", 2 * 3 * (6 + 4) * 4)  # of two calls; the third is too many
    for one, other in zip(_run(_layers), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert (computed.count("linear_wgrad"), computed.count("bias_grad")) == (2, 1)


def test_where_gradients_are_added_late(computed):
    expected = _run(_layers)
    with chainer.using_config("lazy_grad_sum", True):
        found = _run(_layers)
    assert len(computed) == 4
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_gradient_that_is_final_is_reported():
    readiness.install()
    reported = []
    with readiness.watching(lambda param, gradient: reported.append(gradient.copy())):
        found = _run(_layers)
    assert sorted(gradient.ndim for gradient in reported) == [1, 2]
    for one, other in zip(sorted(reported, key=np.ndim), sorted(found, key=np.ndim), strict=True):
        np.testing.assert_array_equal(one, other)
