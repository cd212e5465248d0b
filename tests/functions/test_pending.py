"""Gradients of parameters that several functions use: how often they are computed, beside those computed at once."""

import contextlib
from unittest import mock

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
from tests.functions.nhwc import DTYPES, assert_rounded, normal

TIMES = 5
LABELS = [np.random.RandomState(seed).randint(-1, 7, (3, 1)) for seed in range(TIMES)]
PRIMITIVES = ("linear_wgrad", "bias_grad", "embed_backward")


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


def _beside_one_that_adds(xs, *rest):
    return [*_layers([CF.identity(x) for x in xs], *rest), *_AddsItself().apply(rest[:1])]


# name: (function, how often each of PRIMITIVES runs)
PROGRAMS = {
    "layers": (_layers, [1, 1, 0]),
    "embeddings": (_embeddings, [0, 0, 1]),
    "tied": (lambda xs, W, b, E: [*_embeddings(xs, W, b, E), *_layers(xs, E, None, E)], [1, 0, 1]),
    "beside another function": (lambda xs, *rest: [*_layers(xs, *rest), rest[0] * 3], [1, 1, 0]),
    "beside one that adds": (_beside_one_that_adds, [1, 1, 0]),
    "each in a pass of its own": (
        lambda xs, *rest: [CF.forget(lambda x: _layers([x], *rest)[0], x) for x in xs],
        [TIMES, TIMES, 0],
    ),
    "each recomputed": (
        lambda xs, *rest: [mixprec.recompute(lambda x: _layers([x], *rest)[0])(x) for x in xs],
        [1, 1, 0],
    ),
    "recomputed": (lambda xs, *rest: mixprec.recompute(lambda: tuple(_layers(xs, *rest)))(), [1, 1, 0]),
    "once": (lambda xs, *rest: _layers(xs[:1], *rest), [1, 1, 0]),
}


def _run(program, dtype=np.float32, passes=1, backward=chainer.backward, into=None):
    """Returns the gradients after passes over graphs that were made before, and how often PRIMITIVES have run.

    Numbers are rounded to a dtype, and computed with in it, or in another one.
    """

    def numbers(*args):
        return chainer.Parameter(normal(*args, dtype=dtype).astype(into or dtype))

    params = [numbers(9, *shape) for shape in ((4, 6), (4,), (7, 6))]
    graphs = [program([numbers(seed, 3, 6) for seed in range(TIMES)], *params) for _ in range(passes)]
    primitives = primitives_of(np.ones(1))
    counts = {name: mock.Mock(wraps=getattr(primitives, name)) for name in PRIMITIVES}
    for param in params:
        param.cleargrad()
    with mock.patch.multiple(primitives, **counts):
        for ys in graphs:
            for seed, y in enumerate(ys):
                y.grad = numbers(seed + TIMES, *y.shape).array
            backward(ys)
    return [param.grad for param in params if param.grad is not None], [each.call_count for each in counts.values()]


def _assert_as_at_once(found, program, tolerance, **how):
    with mock.patch.object(sums, "_uses", return_value={}):
        expected, _ = _run(program, **how)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize(("program", "counts"), PROGRAMS.values(), ids=PROGRAMS)
def test_each_is_computed_once_in_a_pass(program, counts, passes):
    found, computed = _run(program, passes=passes)
    assert computed == [passes * count for count in counts]
    _assert_as_at_once(found, program, 1e-5, passes=passes)


def test_recomputation_gives_the_same_bits():
    runs = [_run(program)[0] for program in (_layers, PROGRAMS["recomputed"][0], PROGRAMS["each recomputed"][0])]
    assert len({b"".join(gradient.tobytes() for gradient in gradients) for gradients in runs}) == 1


def test_what_one_function_uses_is_never_pending(monkeypatch):
    monkeypatch.setattr(pending, "Pending", None)
    _run(PROGRAMS["once"][0], passes=2)


def test_it_is_computed_with_the_last_rows(monkeypatch):
    """And not at the end of the pass, when gradients leave the table."""
    kinds, pop = [], sums._GradTable.pop
    monkeypatch.setattr(
        sums._GradTable, "pop", lambda self, node: kinds.extend(map(type, self.grads.get(node, ()))) or pop(self, node)
    )
    _run(_layers)
    assert chainer.Variable in kinds
    assert pending.Pending not in kinds


@pytest.mark.parametrize("program", [_layers, _embeddings])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_rounded_once(dtype, program):
    for found, exact in zip(_run(program, dtype)[0], _run(program, dtype, into=np.float32)[0], strict=True):
        assert_rounded(found, exact.astype(np.float64), dtype, 1e-5)


def _grad(ys):
    params = [x.get_variable() for x in ys[0].creator_node.inputs[1:]]
    for param, gradient in zip(params, chainer.grad(ys, params, [y.grad_var for y in ys]), strict=True):
        param.grad = CF.identity(gradient).array


WATCHED = {
    "hooks": (chainer.function_hooks.TimerHook, chainer.backward),
    "debug": (lambda: chainer.using_config("debug", True), chainer.backward),
    "K-FAC": (lambda: layer_gradients.observing(mock.Mock()), chainer.backward),
    "chainer.grad": (contextlib.nullcontext, _grad),
}


@pytest.mark.parametrize(("around", "backward"), WATCHED.values(), ids=WATCHED)
def test_where_others_look_on_it_is_computed_at_once(around, backward):
    with around():
        found, computed = _run(_layers, backward=backward)
    assert computed == [TIMES, TIMES, 0]
    _assert_as_at_once(found, _layers, 0)


@pytest.mark.parametrize(("most", "lazily", "counts"), [(240, False, [2, 1, 0]), (1 << 20, True, [1, 1, 0])])
def test_many_rows_are_computed_in_between(monkeypatch, most, lazily, counts):
    """Each call adds 120 bytes of rows for the weights, and 48 for the bias."""
    monkeypatch.setattr(pending, "_MOST", most)
    monkeypatch.setattr(pending, "_TIMES", 0)
    with chainer.using_config("lazy_grad_sum", lazily):
        found, computed = _run(_layers)
    assert computed == counts
    _assert_as_at_once(found, _layers, 1e-5)


def test_a_gradient_that_is_final_is_reported():
    readiness.install()
    reported = []
    with readiness.watching(lambda param, gradient: reported.append(gradient.copy())):
        found, _ = _run(_layers)
    assert {gradient.tobytes() for gradient in found} <= {gradient.tobytes() for gradient in reported}


@pytest.mark.parametrize("program", [program for program, _ in PROGRAMS.values()], ids=PROGRAMS)
def test_terms_of_a_list_that_is_added_up_at_the_end(program):
    with chainer.using_config("lazy_grad_sum", True):
        found, _ = _run(program, passes=2)
        _assert_as_at_once(found, program, 1e-5, passes=2)
