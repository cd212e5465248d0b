"""Parts of a model that are computed again, or lie elsewhere meanwhile: the same factors, bit for bit."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from tests.kfac.networks import batch, build, loss
from tests.kfac.references import assert_same, state_of, wrapped


class Blocks(chainer.Chain):
    """conv - BN - ReLU - conv - BN - add - ReLU - linear, the first three as a block."""

    def __init__(self, around=lambda block: block):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.block = Block()
            self.conv = L.Convolution2D(8, 8, 3, pad=1)
            self.bn = L.BatchNormalization(8)
            self.out = L.Linear(8 * 36, 4)
        self.around = around

    def forward(self, x):
        h = self.around(self.block)(x)
        return self.out(F.relu(self.bn(self.conv(h)) + h))


class Block(chainer.Chain):
    """conv - BN - ReLU."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(8)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


def _run(model):
    optimizer, kfac = wrapped(model, chainer.optimizers.MomentumSGD(0.02, 0.9))
    for step in range(2):
        x, t = batch(step)
        # F.forget wants an input with a gradient.
        optimizer.update(loss, model, chainer.Variable(x), t)
    assert not optimizer.skipped
    return state_of(optimizer, kfac)


def test_recompute():
    model = Blocks()
    mixprec.recompute(model.block)
    assert_same(_run(model), _run(Blocks()))


@pytest.mark.slow
def test_forget():
    """Chainer's own, whose parameters are not behind an argument."""
    expected, found = _run(Blocks()), _run(Blocks(lambda block: lambda x: F.forget(block, x)))
    assert_same(found, expected)


@pytest.mark.slow
def test_offload(tmp_path):
    expected = _run(Blocks())
    with mixprec.offload("100 GB", to=tmp_path, smallest=256):
        found = _run(Blocks())
    assert_same(found, expected)


# --- chainer.grad, which is not the backward pass of a loss


def test_other_gradients_in_a_loss_function_are_not_seen():
    def with_penalty(model, x, t):
        value = loss(model, x, t)
        chainer.grad([loss(model, 2 * x, t)], [model[0].W])
        return value

    def run(function):
        model = build("conv")
        optimizer, kfac = wrapped(model)
        for step in range(2):
            optimizer.update(function, model, *batch(step))
        return state_of(optimizer, kfac)

    assert_same(run(with_penalty), run(loss))
