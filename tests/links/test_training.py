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


def _statistics(network):
    return {name: array.copy() for name, array in _persistent(network)}


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


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_batched_and_one_by_one_give_the_same_bits(dtype):
    def trained(batched):
        np.random.seed(0)
        network = Network(dtype=dtype)
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), batched=batched).setup(network)
        _train(network, optimizer, _batches())
        arrays = {name: param.array for name, param in network.namedparams()}
        return {**arrays, **{f"{name}, master": optimizer.master(p).array for name, p in network.namedparams()}}

    batched, one_by_one = trained(True), trained(False)
    for name, array in batched.items():
        np.testing.assert_array_equal(array, one_by_one[name], err_msg=name)


def test_a_first_step_that_overflows_leaves_everything_as_it_was():
    np.random.seed(0)
    network = Network(dtype="float16")
    batches = _batches()
    with chainer.no_backprop_mode(), chainer.using_config("train", False):
        network.loss(*batches[0])
    optimizer = mixprec.MixedPrecisionOptimizer(
        optimizers.MomentumSGD(lr=0.05), loss_scale=mixprec.DynamicLossScale(init=2.0**24)
    ).setup(network)
    params = {name: param.array.copy() for name, param in network.namedparams()}
    statistics = _statistics(network)
    _train(network, optimizer, batches[:1])
    assert optimizer.skipped == 1
    for name, param in network.namedparams():
        np.testing.assert_array_equal(param.array, params[name], err_msg=name)
    for name, array in _persistent(network):
        np.testing.assert_array_equal(array, statistics[name], err_msg=name)
    _train(network, optimizer, batches * 3)
    assert optimizer.skipped < 18
    assert optimizer.loss_scale < 2.0**24
    assert all(np.isfinite(param.array).all() for param in network.params())


def test_bfloat16_forward_and_backward():
    """On a CPU, too."""
    _, reference = _pair()
    network = Network(dtype="bfloat16")
    network.copyparams(reference)
    (x, t), *_ = _batches(1)
    gradients = []
    for each in (network, reference):
        each.cleargrads()
        each.loss(x, t).backward()
        gradients.append({name: param.grad for name, param in each.namedparams()})
    found, expected = gradients
    for name, gradient in expected.items():
        assert found[name].dtype.name == ("float32" if "bn" in name else "bfloat16")
        error = np.abs(found[name].astype(np.float32) - gradient).max()
        # What comes before a normalization has a gradient near 0, for its mean is taken away.
        assert error <= 0.1 * max(np.abs(gradient).max(), 0.1), name


def test_lazy_parameters_are_initialized_in_the_first_step():
    network = Network(dtype="float16")
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.05)).setup(network)
    assert network.conv2.W.array is None
    _train(network, optimizer, _batches(3))
    assert network.conv2.W.array.transpose(0, 2, 3, 1).flags.c_contiguous
    assert "one by one" not in str(optimizer.report())
