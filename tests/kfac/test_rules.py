"""What comes after the preconditioner: hooks and update rules see its gradients."""

import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from tests.kfac import references
from tests.kfac.networks import batch, build, loss
from tests.kfac.references import assert_near, wrapped

DAMPING, RATE, DECAY = 0.1, 0.5, 0.01


def _expected():
    """Returns weights and preconditioned gradients of the first step, FP64."""
    x, t = batch(0)
    plain = references.doubled(build("conv+BN+ReLU"))
    _, gradients = references.step(plain, lambda model: loss(model, x.astype(np.float64), t), DAMPING)
    return {name: param.array for name, param in plain.namedparams()}, gradients


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("clipping", [None, 0.2])
@pytest.mark.parametrize("no_decay", [None, "ndim <= 1"])
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


@pytest.mark.parametrize("compute", ["float32", "float16"])
@pytest.mark.parametrize("rule", RULES)
def test_update_rules_see_preconditioned_gradients(rule, compute):
    """The masters are those of the same rule on the weights of plain Chainer, given these gradients."""
    model, plain = build("conv+BN+ReLU"), build("conv+BN+ReLU")
    optimizer, _ = wrapped(model, RULES[rule](), compute=compute)
    optimizer.add_hook(seen := references.Gradients())
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


@pytest.mark.slow
def test_zero_gradients():
    model = build("conv+BN+ReLU")
    kfac = mixprec.KFAC(DAMPING)
    wrapper = mixprec.MixedPrecisionOptimizer(optimizers.SGD(RATE), zero_gradients=True, preconditioner=kfac)
    optimizer = wrapper.setup(model)
    mixprec.convert(model, compute="float32")
    model.cleargrads()
    for step in range(2):
        optimizer.scale_loss(loss(model, *batch(step))).backward()
        optimizer.update()
    assert not any(param.grad.any() for param in model.params())
    again = build("conv+BN+ReLU")
    other, _ = wrapped(again, optimizers.SGD(RATE), damping=DAMPING)
    for step in range(2):
        other.update(loss, again, *batch(step))
    for one, param in zip(again.params(), model.params(), strict=True):
        np.testing.assert_array_equal(one.array, param.array)


def test_a_hook_of_a_rule_sees_it():
    """Also those that Chainer runs for each parameter alone."""
    _, gradients = _expected()
    model = build("conv+BN+ReLU")
    optimizer, _ = wrapped(model, damping=DAMPING)
    found = {}

    class Hook:
        name, timing = "Hook", "pre"

        def __call__(self, rule, param):
            found["W"] = param.grad.copy()

    model[0].W.update_rule.add_hook(Hook())
    optimizer.update(loss, model, *batch(0))
    assert_near(found["W"], gradients["/0/W"], 1e-4)
