"""What comes after the preconditioner: hooks and update rules see its gradients."""

import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from tests.cases import in_turn, pairs
from tests.kfac import references
from tests.kfac.networks import batch, build, loss
from tests.kfac.references import assert_near, wrapped

DAMPING, RATE, DECAY = 0.1, 0.5, 0.01


def _expected():
    """Returns weights and preconditioned gradients of the first step, FP64."""
    plain = build("conv+BN+ReLU")
    gradients = references.expected_step(plain, loss, *batch(0), DAMPING).gradients
    return {name: param.array for name, param in plain.namedparams()}, gradients


@pytest.mark.parametrize(("clipping", "no_decay", "batched"), pairs([None, 0.2], [None, "ndim <= 1"], [True, False]))
def test_hooks_come_after_it(clipping, no_decay, batched):
    """Decay is added to what is preconditioned, and is not preconditioned; the norm is that of the sum."""
    weights, gradients = _expected()
    decayed = {
        name: gradient + (DECAY * weights[name] if no_decay is None or gradient.ndim > 1 else 0)
        for name, gradient in gradients.items()
    }
    norm = np.sqrt(sum((gradient**2).sum() for gradient in decayed.values()))
    rate = 1 if clipping is None else min(1, clipping / norm)
    assert clipping is None or rate < 0.5

    model = build("conv+BN+ReLU")
    kfac = mixprec.KFAC(DAMPING)
    optimizer = mixprec.MixedPrecisionOptimizer(
        optimizers.SGD(RATE), 2.0**8, batched=batched, no_decay=no_decay, preconditioner=kfac
    ).setup(model)
    mixprec.convert(model, compute="float32")
    optimizer.add_hook(optimizer_hooks.WeightDecay(DECAY))
    if clipping is not None:
        optimizer.add_hook(optimizer_hooks.GradientClipping(clipping))
    optimizer.update(loss, model, *batch(0))
    for name, param in model.namedparams():
        moved = RATE * rate * decayed[name]
        rounding = 2.0**-23 * np.linalg.norm(weights[name]) / np.linalg.norm(moved)
        assert_near(weights[name] - param.array, moved, 1e-4 + rounding, name)


RULES = {
    "MomentumSGD": lambda: optimizers.MomentumSGD(0.02, 0.9),
    "Adam": lambda: optimizers.Adam(0.01),
    "LARS": lambda: mixprec.LARS(0.1, weight_decay=1e-4),
}


@pytest.mark.parametrize(("rule", "compute"), in_turn(RULES, ["float32", "float16"]))
def test_update_rules_see_preconditioned_gradients(rule, compute):
    """The masters are those of the same rule on the weights of plain Chainer, given these gradients."""
    model, plain = build("conv+BN+ReLU"), build("conv+BN+ReLU")
    optimizer, _ = wrapped(model, RULES[rule](), compute=compute)
    seen = references.seen_by_hooks(optimizer)
    beside = RULES[rule]().setup(plain)
    for step in range(4):
        optimizer.update(loss, model, *batch(step))
        for name, param in plain.namedparams():
            param.grad = seen.found[name]
        beside.update()
        masters = {name: optimizer.master(param).array for name, param in model.namedparams()}
        for name, param in plain.namedparams():
            assert_near(masters[name], param.array.astype(np.float64), 1e-6, name)
    assert not optimizer.skipped


def test_unscaled_gradients_are_those_before_it():
    x, t = batch(0)
    plain = references.doubled(build("conv"))
    _, gradients = references.gradients_of(plain, lambda model: loss(model, x.astype(np.float64), t))
    model = build("conv")
    optimizer, _ = wrapped(model)
    optimizer.update(loss, model, x, t)
    for name, gradient in optimizer.unscaled_gradients():
        assert_near(gradient, gradients[name], 1e-5, name)
