"""A small residual network from the links of mixprec trains as Chainer's does, and under MixedPrecisionOptimizer."""

import chainer
import chainer.functions as CF
import chainer.links as CL
import numpy as np
import pytest
from chainer import optimizers

import mixprec
from mixprec import functions as F
from mixprec import links as L
from mixprec.native.native_library import library
from tests.functions.nhwc import DTYPES, normal, to_nchw


class Network(chainer.Chain):
    """conv - BN - ReLU - conv - BN - add - ReLU - max pooling - linear, on (N, H, W, C)."""

    def __init__(self, links=L, **rest):
        super().__init__()
        with self.init_scope():
            self.conv1 = links.Convolution2D(3, 8, 3, pad=1, nobias=True, **rest)
            self.bn1 = links.BatchNormalization(8)
            self.conv2 = links.Convolution2D(None, 8, 3, pad=1, **rest)
            self.bn2 = links.BatchNormalization(8)
            self.fc = links.Linear(None, 5, **rest)

    def forward(self, x):
        x = F.to_nhwc(x, self.fc.W.dtype)
        h = self.bn1(self.conv1(x), relu=True)
        return self.fc(F.max_pooling_2d(self.bn2(self.conv2(h), add=h, relu=True), 2))

    def loss(self, x, t):
        return F.softmax_cross_entropy(self(x), t)


class Plain(Network):
    """The same of Chainer, on (N, C, H, W)."""

    def __init__(self):
        super().__init__(CL)

    def forward(self, x):
        h = CF.relu(self.bn1(self.conv1(x)))
        return self.fc(CF.max_pooling_2d(CF.relu(self.bn2(self.conv2(h)) + h), 2))

    def loss(self, x, t):
        return CF.softmax_cross_entropy(self(x), t)


def _batches(count=6):
    return [(to_nchw(normal(seed, 8, 6, 6, 3)), np.arange(8, dtype=np.int32) % 5) for seed in range(count)]


def _train(network, optimizer, batches):
    losses = []
    for x, t in batches:
        loss = network.loss(x, t)
        network.cleargrads()
        (optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss).backward()
        optimizer.update()
        losses.append(float(loss.array))
    return losses


def _pair():
    np.random.seed(0)
    plain = Plain()
    plain.loss(*_batches(1)[0])
    network = Network(dtype="float32")
    network.copyparams(plain)
    return plain, network


def _persistent(network):
    for link in (network.bn1, network.bn2):
        yield f"{link.name}/mean", link.avg_mean
        yield f"{link.name}/var", link.avg_var


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_float32_is_plain_chainer(wrapped, batched):
    plain, network = _pair()
    make = mixprec.MixedPrecisionOptimizer if wrapped else lambda optimizer, batched: optimizer
    optimizer = make(optimizers.CorrectedMomentumSGD(lr=0.05), batched=batched).setup(network)
    losses = _train(network, optimizer, _batches())
    expected = _train(plain, optimizers.CorrectedMomentumSGD(lr=0.05).setup(plain), _batches())
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for (name, param), (_, other) in zip(sorted(network.namedparams()), sorted(plain.namedparams()), strict=True):
        np.testing.assert_allclose(param.array, other.array, rtol=1e-3, atol=1e-5, err_msg=name)
    for name, array in _persistent(network):
        np.testing.assert_allclose(array, dict(_persistent(plain))[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.skipif(library() is None, reason="needs the native library")
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_16_bits_with_masters_stay_close_to_float32(dtype):
    _, reference = _pair()
    network = Network(dtype=dtype)
    scale = mixprec.StaticLossScale(1024.0)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.05), loss_scale=scale).setup(network)
    network.copyparams(reference)
    losses = _train(network, optimizer, _batches())
    expected = _train(reference, optimizers.MomentumSGD(lr=0.05).setup(reference), _batches())
    assert optimizer.skipped == 0
    np.testing.assert_allclose(losses, expected, rtol=0.05)
    assert network.conv1.W.dtype == network.fc.b.dtype == dtype
    assert network.bn1.gamma.dtype == network.bn1.avg_mean.dtype == np.float32
    report = str(optimizer.report())
    assert "one by one" not in report, report
