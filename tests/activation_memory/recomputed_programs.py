"""Networks with recomputed parts, and runs of them beside the same without, for the tests of ``mixprec.recompute``."""

import collections
import random

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

import mixprec
from mixprec.backends import dropout_state
from mixprec.functions import dropout, reset_dropout
from models import resnet

Pair = collections.namedtuple("Pair", ["first", "rest"])
COMPUTE = [None, "float32", "float16"]  # None: plain Chainer


class Net(chainer.Chain):
    """Links for the programs below.

    Args:
        program: function of the network, images (N, 3, 8, 8) and ``again``; it returns (N, anything).
        again: ``mixprec.recompute``, or a function that returns what it gets.
    """

    def __init__(self, program, again):
        super().__init__()
        self._program, self._again = program, again
        with self.init_scope():
            self.stem = L.Convolution2D(3, 8, 3, pad=1)
            self.convs = chainer.ChainList(*(L.Convolution2D(8, 8, 3, pad=1, nobias=True) for _ in range(4)))
            self.bns = chainer.ChainList(*(L.BatchNormalization(8) for _ in range(4)))
            self.block = resnet.BasicBlock(8, 8, 1)
            self.wider = resnet.BasicBlock(8, 16, 2)
            self.stage = resnet.stage(resnet.BasicBlock, 8, 8, 2, 1)
            self.lstm = L.LSTM(8, 8)
            self.stateless = L.StatelessLSTM(8, 8)
            self.linear = L.Linear(8, 8)
            self.scale = chainer.Parameter(np.linspace(0.5, 1.5, 8, dtype=np.float32).reshape(1, 8, 1, 1))

    def forward(self, x):
        return self._program(self, x, self._again)


def layer(net, number, x):
    return F.relu(net.bns[number](net.convs[number](x)))


def residual_blocks(net, x, again):
    h = again(net.block)(net.stem(x))
    return again(net.wider)(again(net.stage)(h))


def blocks_in_blocks(net, x, again):
    again(net.stage[0])
    again(net.stage[1].conv1)
    part = again(lambda h: again(net.wider)(again(net.stage)(h)))
    return part(net.stem(x))


def branches(net, x, again):
    """Four gradients of one variable: their sum depends on the order in which they are added."""
    h = net.stem(x)
    deep = again(lambda h: layer(net, 1, layer(net, 0, h)) * 3)
    flat = again(lambda h: h * 0.7)
    two = again(lambda h: F.sigmoid(net.convs[2](h)))
    return F.concat((deep(h), F.tanh(h), flat(h), two(h)))


def inside_and_outside(net, x, again):
    """``F.forget`` would lose a part of the gradients of what is used inside and outside."""
    h = net.stem(x)
    factor = F.sigmoid(F.sum(h, axis=(2, 3), keepdims=True))

    def inside(h):
        return F.relu(net.convs[0](net.convs[0](h) * factor))

    h = net.convs[0](again(inside)(net.convs[0](h)))
    return again(inside)(h) * factor


def several_times(net, x, again):
    block = again(net.block)
    h = block(net.stem(x))
    return block(block(h) + h)


def results_of_all_kinds(net, x, again):
    @again
    def split(pair, factor=1.0, names=()):
        h = layer(net, 0, pair["h"]) * factor
        low, high = F.split_axis(h, 2, axis=1)
        named = {name: F.exp(pair["h"]) + number for number, name in enumerate(names)}
        return Pair(low, [high, named, None, F.exp(h), pair["h"]])

    h = net.stem(x)
    pair = split({"h": h}, 2.0, names=("a", "b"))
    high, named, nothing, _, argument = pair.rest
    assert nothing is None
    assert argument is h
    return F.concat((pair.first, high, named["b"]))


def lstm_over_time(net, x, again):
    steps = F.separate(F.sum(net.stem(x), axis=3), axis=2)
    again(net.lstm).reset_state()
    cell = again(net.stateless)
    c = h = None
    results = []
    for number, step in enumerate(steps):
        if number == 3:
            results[-1].unchain_backward()
        c, h = cell(c, h, net.lstm(step))
        results.append(h)
    return F.stack([*results[3:], net.lstm.c])


def kept_in_the_model(net, x, again):
    """Attributes of links are results, too."""
    net.collected = []

    class Keeping(chainer.Chain):
        def forward(self, h):
            net.last = layer(net, 0, h)
            net.collected.append(net.last * 2)
            return F.relu(net.last)

    @again
    def keeping(net, h):
        return Keeping()(h)

    h = keeping(net, net.stem(x))
    return keeping(net, h) + net.last + sum(net.collected)


def dropout_of_all_kinds(net, x, again):
    @again
    def part(h):
        h = F.dropout(h, 0.3)
        h = dropout(F.transpose(net.convs[0](h), (0, 2, 3, 1)), 0.4)
        h = F.gaussian(h, F.sigmoid(h)) * np.random.rand() + random.random()
        return F.zoneout(h, F.relu(h), 0.2)

    again(net.block)
    whole = again(lambda h: F.dropout(part(h)) * random.random())
    h = F.transpose(whole(part_of_images(net, x)), (0, 3, 1, 2))
    return F.dropout(net.block(h))


def part_of_images(net, x):
    return net.stem(x)[:, :, 1:7, 1:7]


def with_frozen_parts(net, x, again):
    net.convs[0].disable_update()

    @again
    def part(h):
        with chainer.no_backprop_mode():
            fixed = net.convs[1](h)
        with chainer.using_config("train", False):
            h = net.bns[0](net.convs[0](h))
        return h + fixed.array

    return part(net.stem(x)) + again(net.stem)(x) + again(lambda: net.scale * 2)()


PROGRAMS = [
    *(residual_blocks, blocks_in_blocks, branches, inside_and_outside, several_times, results_of_all_kinds),
    *(lstm_over_time, kept_in_the_model, dropout_of_all_kinds, with_frozen_parts),
]


def same(what, on=True):
    return what


class Run:
    """Steps of a network, with an overflow among them, and everything that they leave."""

    def __init__(self, program, again, compute):
        random.seed(0)
        np.random.seed(0)
        reset_dropout()
        self.model = Net(program, again)
        if compute is not None:
            mixprec.convert(self.model, compute=compute)
        optimizer = mixprec.MixedPrecisionOptimizer(
            chainer.optimizers.MomentumSGD(0.01), loss_scale=mixprec.DynamicLossScale(init=2.0**10, interval=2)
        )
        self.optimizer = optimizer.setup(self.model)
        self.found = []

    def step(self, number):
        x = np.random.RandomState(number).normal(size=(2, 3, 8, 8)).astype(np.float32)
        if number == 1:
            x[0, 0, 0, 0] = np.inf
        x = chainer.Variable(x)

        def losses():
            yield F.mean(self.model(x) ** 2)
            yield F.mean(abs(self.model(x * 0.5))) + F.sum(self.model.scale)

        self.optimizer.update(losses)
        self.found.append(x.grad)
        return self

    def results(self):
        named = sorted(self.model.namedparams())
        found = [param.grad for _, param in named] + [param.array for _, param in named]
        found += [self.optimizer.master(param).array for _, param in named]
        for _, link in sorted(self.model.namedlinks()):
            found += [vars(link)[name] for name in sorted(link._persistent)]
        found += [self.optimizer.skipped, self.optimizer.loss_scale, np.random.rand(), random.random()]
        found.append(dropout_state.dropout_state(named[0][1].array))
        return [np.array(value) for value in self.found + found]


def beside_blocks(net, x, again):
    """Functions beside a block, and low ones in it, have their turns before it in a pass that has all of the graph."""
    h = net.stem(x)
    inside = again(lambda h: F.sigmoid(net.convs[0](h * net.scale)) * F.relu(h) * net.scale)
    return inside(h) * net.scale + F.relu(h * 1.3) + F.tanh(h * 0.7) + inside(F.relu(h))


def assert_same(found, expected):
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one.dtype.kind == "f":  # the sign of a NaN depends on which of two summands comes first
            one, other = (np.where(np.isnan(each), one.dtype.type(np.nan), each) for each in (one, other))
        assert one.dtype == other.dtype, number
        assert one.tobytes() == other.tobytes(), number


def run(program, again, compute, steps=3):
    """Returns all that some steps leave."""
    taken = Run(program, again, compute)
    for number in range(steps):
        taken.step(number)
    return taken.results()


def loss_of(program, again, compute=None, x=None):
    """Returns a model and a loss."""
    np.random.seed(0)
    reset_dropout()
    model = Net(program, again)
    if compute is not None:
        mixprec.convert(model, compute=compute)
    model.cleargrads()
    x = np.random.RandomState(0).normal(size=(2, 3, 8, 8)).astype(np.float32) if x is None else x
    return model, F.mean(model(x) ** 2)


def gradients(model):
    return [np.array(param.grad) for _, param in sorted(model.namedparams())]
