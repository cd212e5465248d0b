"""``blocks_of`` finds the residual blocks of a network, and counts what is kept with them and without."""

import random

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.activation_memory.network_blocks import blocks_of
from mixprec.activation_memory.recomputation import _MARK
from mixprec.rewrite.trace import sizes_kept
from models import resnet

X = np.ones((2, 3, 64, 64), np.float32)


def _model(name, compute):
    model = getattr(resnet, name)()
    if compute is not None:
        mixprec.convert(model, X, compute=compute)
    return model


@pytest.mark.slow
def test_the_blocks_of_a_resnet_are_the_residual_blocks():
    model = _model("resnet50", "float16")
    before = {name: param.array.copy() for name, param in model.namedparams()}
    statistics = model.bn1.avg_mean.copy()
    found = blocks_of(model, X)
    kinds = [type(block.link) for block in found.blocks]
    assert kinds.count(resnet.Bottleneck) >= 10
    assert set(kinds) <= {resnet.Bottleneck, chainer.Sequential}
    assert found.blocks[0].name == "/layer1/0"
    assert found.kept_with + found.largest < 0.5 * found.kept
    assert all(0 < block.inputs < block.inside for block in found.blocks)
    np.testing.assert_array_equal(model.bn1.avg_mean, statistics)
    assert all((param.array == before[name]).all() for name, param in model.namedparams())
    assert not any(_MARK in vars(link) for link in model.links())
    again = blocks_of(model, X)
    assert (again.kept, again.kept_with, again.blocks) == (found.kept, found.kept_with, found.blocks)


@pytest.mark.parametrize("compute", [pytest.param(None, marks=pytest.mark.slow), "bfloat16"])
def test_what_is_said_to_be_kept_is_kept(compute):
    model = _model("resnet18", compute)
    found = blocks_of(model, X)
    model(X)  # what is fused has turned out
    kept = sum(sizes_kept([model(X)]))
    assert kept == pytest.approx(found.kept, abs=2 * X.nbytes)  # the images, and a copy in 16 bits, are not counted
    for block in found.blocks:
        mixprec.recompute(block.link)
    model(X)
    assert kept - sum(sizes_kept([model(X)])) == pytest.approx(found.kept - found.kept_with, rel=0.02)
    marked = blocks_of(model, X)
    assert (marked.kept, marked.kept_with) == (found.kept, found.kept_with)


def test_links_that_are_called_twice_or_save_nothing_are_no_blocks():
    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.linear = L.Linear(8, 8)
                self.twice = chainer.Sequential(L.Linear(8, 8), F.sin, F.exp)
                self.once = chainer.Sequential(L.Linear(8, 8), F.sin, F.exp, F.sin)
                self.last = chainer.Sequential(L.Linear(8, 8), F.sin, F.exp, F.sin)
                self.unused = L.Linear(3, 3)

        def forward(self, x, t):
            return F.softmax_cross_entropy(self.last(self.once(self.twice(self.twice(self.linear(x))))), t)

    model = Net()
    found = blocks_of(model, np.ones((4, 8), np.float32), np.zeros(4, np.int32))
    assert [block.name for block in found.blocks] == ["/once", "/last"]
    batch = 4 * 8 * 4
    assert [(block.inputs, block.inside) for block in found.blocks] == [(batch, 3 * batch)] * 2
    assert (found.kept - found.kept_with, found.largest) == (4 * batch, 2 * batch)


def test_links_that_keep_nothing_or_next_to_nothing_are_no_blocks_and_nothing_else_is_noticed():
    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.fixed = chainer.Sequential(L.Linear(8, 8), F.sin, F.exp)
                self.view = chainer.Sequential(F.sum)
                self.tiny = chainer.Sequential(L.Linear(8, 1), F.sin, F.exp, F.sin)
                self.large = L.Linear(8, 512)

        def forward(self, x):
            chainer.report({"calls": random.random()}, self)
            with chainer.no_backprop_mode():
                fixed = self.fixed(x)
            return F.sum(F.sin(self.large(F.sin(x) + fixed))) + F.sum(self.tiny(F.sin(x))) + self.view(F.sin(x))

    model, state, reporter, reported = Net(), random.getstate(), chainer.Reporter(), {}
    reporter.add_observer("net", model)
    with reporter.scope(reported):
        found = blocks_of(model, chainer.Variable(np.ones((4, 8), np.float32)))
    assert (found.blocks, found.kept_with, found.largest) == ((), found.kept, 0)
    assert (random.getstate(), reported) == (state, {})


def test_sizes_are_right_although_memory_is_used_again():
    class Block(chainer.Chain):
        def forward(self, h):
            return F.sin(F.exp(F.sin(F.sin(h * 2))) * 2) + 1

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.blocks = chainer.ChainList(*(Block() for _ in range(8)))

        def forward(self, h):
            h = h * 1
            for block in self.blocks:
                h = block(h + 1)  # nothing else keeps this sum
            return h

    found = blocks_of(Net(), chainer.Variable(np.ones((256, 64), np.float32)))
    batch = 256 * 64 * 4
    assert [(block.inputs, block.inside) for block in found.blocks] == [(batch, 4 * batch)] * 8
    assert (found.kept, found.kept_with, found.largest) == (32 * batch, 8 * batch, 4 * batch)
