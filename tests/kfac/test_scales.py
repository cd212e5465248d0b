"""Loss scales cancel, and a step that overflows leaves K-FAC as it was."""

import chainer
import numpy as np
import pytest

import mixprec
from tests.cases import in_turn
from tests.kfac.networks import batch, build, loss
from tests.kfac.references import assert_same, layer_of, state_of, wrapped

STEPS = 5


def _run(compute, loss_scale, batched=True):
    model = build("conv+BN+ReLU")
    rule = chainer.optimizers.MomentumSGD(0.02, 0.9)
    optimizer, kfac = wrapped(model, rule, compute=compute, loss_scale=loss_scale, batched=batched)
    for step in range(STEPS):
        optimizer.update(loss, model, *batch(step))
    assert not optimizer.skipped
    return state_of(optimizer, kfac)


@pytest.mark.parametrize(("scale", "batched"), [(2.0**14, True), (None, True), (mixprec.NoLossScale(), False)])
def test_scales_give_the_same_bits_in_float32(scale, batched):
    """They are powers of two, and so are their squares."""
    assert_same(_run("float32", scale, batched), _run("float32", 2.0**8, batched))


def test_a_scale_whose_square_is_beyond_float32():
    def run(scale):
        optimizer, kfac = wrapped(model := build("linear"), loss_scale=scale)
        optimizer.update(loss, model, *batch(0))
        return state_of(optimizer, kfac)

    assert_same(run(2.0**64), run(2.0**8))


# --- overflows


def _poisoned(kind):
    """Returns arguments of a step that overflows: an image with inf, or a loss that is too large."""
    x, t = batch(0)
    if kind == "image":
        x[0, 0, 0, 0] = np.inf
        return loss, x, t
    return (lambda model, x, t: loss(model, x, t) * 1e30 * 1e30), x, t


def _steps(plan, kind, compute="float32", **options):
    """Runs steps, "x" for one that overflows; yields the optimizer, K-FAC and the kind of each step before it."""
    model = build("conv+BN+ReLU")
    rule = chainer.optimizers.MomentumSGD(0.02, 0.9)
    scale = mixprec.StaticLossScale(2.0**8)
    optimizer, kfac = wrapped(model, rule, compute=compute, loss_scale=scale, **options)
    for step, mark in enumerate(plan):
        before = state_of(optimizer, kfac)
        of_step = kfac.kind
        function, x, t = _poisoned(kind) if mark == "x" else (loss, *batch(step))
        optimizer.update(function, model, x, t)
        assert optimizer.last_step_skipped == (mark == "x")
        yield mark, before, state_of(optimizer, kfac), of_step


# Steps are of new inverses until the first success is known, 8 steps later; then every 4th, with moments every 2nd.
PLANS = {
    "factors": "." * 10 + "x...",
    "inverses": "." * 12 + "x...",
    "plain": "." * 11 + "x...",
    "first": "x" + "." * 4,
    "first three": "xxx....",
    "in a row": "." * 9 + "xxxx...",
}


@pytest.mark.parametrize(
    ("plan", "kind", "batched"), [(plan, *rest) for plan, rest in in_turn(PLANS, [("image", True), ("loss", False)])]
)
def test_an_overflow_changes_nothing(plan, kind, batched):
    kinds = []
    for mark, before, after, of_step in _steps(PLANS[plan], kind, factor_every=2, inverse_every=4, batched=batched):
        kinds.append(of_step)
        if mark == "x":
            common = before.keys()  # of the very first step K-FAC finds its layers, and momentum begins at zero
            assert_same({name: after[name] for name in common}, before)
            assert not any(np.any(after[name]) for name in after.keys() - common)
        else:
            assert all(np.isfinite(value).all() for value in after.values())
            moved = [name for name in before if name.startswith("master") and (before[name] != after[name]).any()]
            assert len(moved) == 5
    if plan in ("factors", "inverses", "plain"):
        assert kinds[len(PLANS[plan]) - 4] == {"factors": 1, "inverses": 2, "plain": 0}[plan]


def test_moments_beyond_float32_do_not_stay():
    """Activations whose squares are inf though gradients are not, in a step with moments but no inverses."""
    model = build("linear without bias")
    optimizer, kfac = wrapped(model, factor_every=2, inverse_every=4)
    for step in range(20):
        x, t = batch(step)
        if step == 10:
            assert kfac.kind == 1
            x[0] = 3e19
        optimizer.update(loss, model, x, t)
        assert not optimizer.last_step_skipped
    assert layer_of(kfac, "/0/W").steps == 13  # 8 before a success is known, and 8, 12, 14, 16, 18: without 10
    assert all(np.isfinite(array).all() for array in state_of(optimizer, kfac).values())
