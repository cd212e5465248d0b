"""A step with a communicator, beside one without: the same bit for bit if all ranks have the same gradients."""

import warnings

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks

import mixprec
from mixprec.optimizer.counted_losses import CountedLosses
from tests.cases import in_turn
from tests.distributed.runs import assert_same_runs, batch, train
from tests.stand_ins.update_pair import RULES, new_optimizer

pytestmark = pytest.mark.usefixtures("twins")


@pytest.mark.parametrize(("rule", "compute"), in_turn(RULES, ["float16", "bfloat16", "float32"]))
def test_all_rules(rule, compute):
    assert_same_runs(train, compute, lambda: new_optimizer(rule))


SETTINGS = [
    {"batched": False},
    {"zero_gradients": True},
    {"no_decay": "ndim <= 1"},
    {"loss_scale": None},
    {"loss_scale": 128.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_all_settings(settings):
    assert_same_runs(train, "float16", lambda: new_optimizer("Adam, decay"), **settings)


@pytest.mark.parametrize(("compute", "batched"), [("float32", False), ("bfloat16", True)])
def test_hooks_see_the_mean(compute, batched):
    def run(model, optimizer):
        optimizer.add_hook(optimizer_hooks.WeightDecay(0.013))
        optimizer.add_hook(optimizer_hooks.GradientClipping(0.1))
        optimizer.add_hook(lambda optimizer: [p.grad.__imul__(0.5) for p in optimizer.target.params()], "mine")
        train(model, optimizer)

    assert_same_runs(run, compute, lambda: new_optimizer("MomentumSGD"), batched=batched)


@pytest.mark.parametrize(("number", "compute"), [(0, "float32"), (3, "float16")])
def test_several_losses(number, compute):
    """With and without a length hint, that is with and without overlap."""

    def run(model, optimizer):
        def losses(step):
            return (model(*batch(10 * step + part)) / 3 for part in range(3))

        for step in range(4):
            optimizer.update(lambda step=step: CountedLosses(losses(step), number))
        for step in range(4):
            optimizer.update(losses, step)

    assert_same_runs(run, compute, lambda: new_optimizer("Adam"))


def test_loops_of_your_own():
    """Cleared, accumulated, used once more, zeroed, written, and parameters without a gradient."""

    def run(model, optimizer):
        def backward(step):
            optimizer.scale_loss(model(*batch(step))).backward()

        model.cleargrads()
        backward(0)
        optimizer.update()
        backward(1)  # on top of a gradient that was used
        optimizer.update()
        optimizer.update()  # all of them once more
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            model.zerograds()
        model.predictor.uses_extra = False
        backward(2)
        backward(3)
        optimizer.update()
        model.cleargrads()
        backward(4)
        optimizer.update()
        model.predictor.uses_extra = True
        for param in model.params():
            param.grad = np.full_like(param.array, 0.25)
        optimizer.update()
        optimizer.update(model, *batch(5))
        assert optimizer.t == 7

    assert_same_runs(run, "float16", lambda: new_optimizer("MomentumSGD"), loss_scale=64.0)


def test_models_that_change():
    """Another parameter, a frozen one, another dtype, a parameter that is taken away, another array."""

    def run(model, optimizer):
        optimizer.update(model, *batch(0))
        optimizer.update(model, *batch(1))
        del model.predictor.out
        with model.predictor.init_scope():
            model.predictor.out = L.Linear(8, 5, initialW=chainer.initializers.Constant(0.1))
        for param in model.predictor.out.params():
            param.update_rule = optimizer.create_update_rule()
        optimizer.update(model, *batch(2))
        model.predictor.first.disable_update()
        optimizer.update(model, *batch(3))
        model.predictor.first.W.array = model.predictor.first.W.array.copy()
        optimizer.update(model, *batch(4))
        mixprec.revert(model)
        optimizer.update(model, *batch(5))
        optimizer.update(model, *batch(6))

    assert_same_runs(run, "float16", lambda: new_optimizer("Adam"))


def test_gradients_that_lie_where_others_are_packed():
    """A parameter gets the gradient of another one, which is part of the memory for all of them."""

    def run(model, optimizer):
        for step in range(2):
            optimizer.update(model, *batch(step))
        square = model.predictor.extra.W
        square.grad = square.grad.T
        optimizer.update()
        one, other = model.predictor.first.b, model.predictor.second.b
        one.grad, other.grad = other.grad, one.grad
        optimizer.update()
        other.grad = one.grad
        optimizer.update()

    assert_same_runs(run, "float32", lambda: new_optimizer("MomentumSGD"), loss_scale=64.0)
