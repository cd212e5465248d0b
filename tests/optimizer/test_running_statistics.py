"""Running statistics of a skipped step come back, whatever pass has moved them."""

import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec
from tests.cases import pairs

X = np.random.RandomState(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
BAD = X.copy()
BAD[0, 0, 0, 0] = np.inf


class Net(chainer.Chain):
    def __init__(self, way):
        super().__init__()
        self.way = way
        with self.init_scope():
            self.conv, self.bn, self.out = L.Convolution2D(3, 4, 3), L.BatchNormalization(4), L.Linear(144, 2)

    def trunk(self, x):
        return F.relu(self.bn(self.conv(x)))

    def forward(self, x):
        return F.sum(self.out(self.way(self, x)) ** 2)


def forgotten(net, x):
    return F.forget(net.trunk, x)


def _teacher(net, x):
    with chainer.no_backprop_mode():
        return net.trunk(x)


def teacher(net, x):
    return net.trunk(X) + _teacher(net, x)


def a_teacher_that_is_called_first(net, x):
    return _teacher(net, x) + net.trunk(X)


def a_part_that_is_not_called(net, x):
    return F.relu(net.bn.forward(net.conv(x)))


def recomputed(net, x):
    return mixprec.recompute(net.trunk)(x)


def plain(net, x):
    return net.trunk(x)


WAYS = [forgotten, teacher, a_teacher_that_is_called_first, recomputed, plain]


def _statistics(model):
    return {name: np.copy(getattr(model.bn, name)) for name in ("avg_mean", "avg_var")}


def _by_update(optimizer, model, x):
    optimizer.update(model, x)


def _by_hand(optimizer, model, x):
    loss = model(x)
    model.cleargrads()
    optimizer.scale_loss(loss).backward()
    optimizer.update()


SKIPPED = [
    *pairs(WAYS, [_by_update, _by_hand], [False, True], [False, True]),
    # Of a link that is not called, a loop of one's own does not say that a step begins.
    (a_part_that_is_not_called, _by_update, True, False),
]


@pytest.mark.parametrize(("way", "step", "converts", "freezes"), SKIPPED)
def test_statistics_of_a_skipped_step_come_back(way, step, converts, freezes):
    """Also of layers that are frozen, before which there is no backward pass."""
    model = Net(way)
    rates = {"/conv/*": 0, "/bn/*": 0} if freezes else None
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(1e-3), 64.0, rates=rates).setup(model)
    if converts:
        mixprec.convert(model, X)
    for x, skips in ((X, False), (BAD, True), (X, False)):
        before = _statistics(model)
        with np.errstate(invalid="ignore"):
            step(optimizer, model, x)
        assert optimizer.last_step_skipped == skips
        assert np.array_equal(before["avg_mean"], model.bn.avg_mean) == skips
        assert np.array_equal(before["avg_var"], model.bn.avg_var) == skips
    assert np.isfinite(model.bn.avg_mean).all()


@pytest.mark.parametrize(("critics", "step"), [(2, _by_update), (1, _by_hand)])
def test_statistics_of_the_model_of_another_optimizer(critics, step):
    """A generator that the step of a critic calls: where that step is skipped, they come back, too."""
    model, critic = Net(plain), L.Linear(2, 1)
    mine = mixprec.MixedPrecisionOptimizer(optimizers.SGD(1e-3), 64.0).setup(model)
    others = mixprec.MixedPrecisionOptimizer(optimizers.SGD(1e-3), 64.0).setup(critic)

    def loss(x):
        with chainer.no_backprop_mode():
            y = model.out(model.trunk(x))
        return F.sum(critic(y) ** 2)

    for _ in range(critics):
        _step_of_a_critic(others, critic, loss, X, step)
    before = _statistics(model)
    with np.errstate(invalid="ignore"):
        _step_of_a_critic(others, critic, loss, BAD, step)
    assert others.last_step_skipped
    for name, value in _statistics(model).items():
        np.testing.assert_array_equal(value, before[name])
    if step is _by_hand:  # which does not say whose step the critic's calls were
        step(mine, model, X)
        before = _statistics(model)
    with np.errstate(invalid="ignore"):
        step(mine, model, BAD)
    assert mine.last_step_skipped
    for name, value in _statistics(model).items():
        np.testing.assert_array_equal(value, before[name])


def _step_of_a_critic(optimizer, critic, loss, x, step):
    if step is _by_update:
        optimizer.update(loss, x)
    else:
        critic.cleargrads()
        optimizer.scale_loss(loss(x)).backward()
        optimizer.update()


def test_one_pass_of_the_generator_for_both_steps():
    """As in DCGAN, by hand: a generator whose step counts is brought back by that of its own only."""
    model, critic = Net(plain), L.Linear(2, 1)
    mine, others = (mixprec.MixedPrecisionOptimizer(optimizers.SGD(1e-3), 64.0).setup(each) for each in (model, critic))
    before = _statistics(model)
    fakes = model.out(model.trunk(X))
    for optimizer, link, sign in ((others, critic, 1), (mine, model, np.inf)):
        link.cleargrads()
        with np.errstate(invalid="ignore"):
            optimizer.scale_loss(F.sum(critic(fakes)) * sign).backward()
        optimizer.update()
    assert (others.last_step_skipped, mine.last_step_skipped) == (False, True)
    for name, value in _statistics(model).items():
        np.testing.assert_array_equal(value, before[name])


def test_steps_of_other_threads_keep_their_statistics():
    models = [Net(plain) for _ in range(2)]
    steps = [mixprec.MixedPrecisionOptimizer(optimizers.SGD(1e-3), 64.0).setup(model) for model in models]
    within, over = threading.Event(), threading.Event()

    def waits(x):
        loss = models[1](x)
        within.set()
        over.wait(10)
        return loss

    def loss(x):
        value = models[0](x)
        thread.start()
        within.wait(10)
        return value

    thread = threading.Thread(target=steps[1].update, args=(waits, X))
    with np.errstate(invalid="ignore"):
        steps[0].update(loss, BAD)
    over.set()
    thread.join()
    assert (steps[0].last_step_skipped, steps[1].last_step_skipped) == (True, False)
    assert (models[1].bn.avg_mean != 0).all()
