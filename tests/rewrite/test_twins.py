"""A target network that is a part of the model that is converted: convert names it."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec

X = np.random.RandomState(0).normal(size=(4, 8)).astype(np.float32)
TEXT = (
    "%s have the same weights: if one is a target network or an average of another, %s rounds its small steps away: "
    "name it in keep_float32, or make it by copy.deepcopy after mixprec.convert"
)


class Both(chainer.Chain):
    """A student ``q``, and its average ``k``, which is no link of its own model."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.q, self.k = (chainer.Sequential(L.Linear(8, 8), F.relu, L.Linear(8, 8)) for _ in range(2))
        for target, source in zip(self.k, self.q, strict=True):
            if isinstance(target, chainer.Link):
                target.copyparams(source)

    def forward(self, x):
        with chainer.no_backprop_mode():
            aim = self.k(x)
        return F.mean((self.q(x) - aim - 1) ** 2)

    def step(self, optimizer):
        optimizer.update(self, X)
        for target, source in zip(self.k.params(), self.q.params(), strict=True):
            target.array[...] += 1e-3 * (source.array - target.array)


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_a_target_network_in_the_model_is_named_and_moves_in_float32(compute):
    ways = {}
    for keep in (None, (), ("/k",)):
        model = Both()
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(1e-3), 64).setup(model)
        if keep is not None:
            report = mixprec.convert(model, compute=compute, keep_float32=keep)
            assert report.too_narrow == ([] if keep else [TEXT % ("/k and /q", compute)])
        before = model.k[0].W.array.astype(np.float32)
        for _ in range(100):
            model.step(optimizer)
        ways[keep] = abs(model.k[0].W.array - before).sum()
    assert ways[()] < ways[None] / 2  # else there would be no need for a word
    np.testing.assert_allclose(ways[("/k",)], ways[None], rtol=0.01 if compute == "float16" else 0.05)


def test_which_parts_are_named():
    assert mixprec.convert(Both()).too_narrow == []  # for inference
    zeros = chainer.Sequential(*(L.Linear(8, 8, initialW=0) for _ in range(2)), L.Linear(8, 8))
    mixprec.MixedPrecisionOptimizer(optimizers.SGD()).setup(zeros)
    assert mixprec.convert(zeros).too_narrow == []
    layers = chainer.Sequential(L.Linear(8, 8)).repeat(3, "copy")
    mixprec.MixedPrecisionOptimizer(optimizers.SGD()).setup(layers)
    assert mixprec.convert(layers).too_narrow == [TEXT % ("/0, /1 and /2", "float16")]
