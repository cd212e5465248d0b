"""ResNet-18 of ``models/resnet.py`` trains over the bridge as it does by Chainer's own path: the same losses.

Two float32 runs of a net part by 1e-4 to 1e-2 as soon as one pre-activation near 0 has another sign in one of them.
Measured on NumPy, 20 steps with and without noise of 1 ulp on the results of the convolutions: from the usual start
they differed by up to 9e-3 (16 channels, batches of 8 to 32, rates of 0.003 to 0.01), while a gradient wrong by 1 %
in one layer changed losses by 2e-3 to 5e-2. So normalizations begin with the shift 1 and the scale SCALE, which has a
ReLU's input 4 deviations away from 0, and the last one of a block with the shift 0 and the scale LAST. From there, in
the small size, the loss fell from 2.75 to 0.012, three runs with noise were within 5e-6, and a gradient wrong by 1 %
in one of five layers changed losses by 1.1e-3 to 2.2e-2. BOUND lies between. Larger sizes part again: 32 channels, 16
images of 64 pixels by 1.6e-4 to 9e-4 (by 3e-4 with a rate of 0.005 and a scale of 0.15), so there is no such size
here.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.backends import cuda

from models.resnet import BasicBlock, ResNet
from tests.bridge.cases import CONVOLUTIONS, Bridge, device, send

pytestmark = pytest.mark.gpu
STEPS = 20
BOUND = 1e-4  # relative, of a loss
SCALE, LAST, RATE = 0.25, 0.4, 0.02
SIZE = 8, 16, 32  # channels, batch, pixels


def network(channels):
    """Returns the net on NumPy, always the same."""
    before = np.random.get_state()
    np.random.seed(0)
    net = ResNet(BasicBlock, (2, 2, 2, 2), 10, channels=channels)
    np.random.set_state(before)
    for link in net.links():
        if isinstance(link, L.BatchNormalization):
            link.gamma.array[...], link.beta.array[...] = SCALE, 1
    for link in net.links():
        if isinstance(link, BasicBlock):
            link.bn2.gamma.array[...], link.bn2.beta.array[...] = LAST, 0
    return net


def train(use_cudnn):
    """Returns the losses of the steps, and how far each parameter has moved, relative to its norm."""
    channels, batch, pixels = SIZE
    rng = np.random.default_rng(0)
    x = send(rng.standard_normal((batch, 3, pixels, pixels), np.float32))
    t = send(rng.integers(0, 10, batch).astype(np.int32))
    net = network(channels)
    start = {name: param.array.copy() for name, param in net.namedparams()}
    net.to_device(device())
    optimizer = chainer.optimizers.CorrectedMomentumSGD(RATE).setup(net)
    losses = []
    with chainer.using_config("use_cudnn", use_cudnn):
        for _ in range(STEPS):
            loss = F.softmax_cross_entropy(net(x), t)
            net.cleargrads()
            loss.backward()
            optimizer.update()
            losses.append(float(loss.array))
    moved = {
        name: np.linalg.norm(cuda.to_cpu(param.array) - start[name]) / np.linalg.norm(start[name])
        for name, param in net.namedparams()
        if name.endswith("W")
    }
    return np.array(losses), moved


def test_the_bridge_trains_as_chainer_does(monkeypatch):
    expected, moved = train("never")
    assert expected[-1] < 0.1 * expected[0]
    assert min(moved.values()) > 1e-3
    bridge = Bridge(monkeypatch)
    found, _ = train("auto")
    assert not bridge.own
    assert {name: bridge.calls[name] for name in CONVOLUTIONS} == {
        "convolution_forward": 20 * STEPS,
        "convolution_backward_data": 19 * STEPS,
        "convolution_backward_filter": 20 * STEPS,
    }
    assert (np.abs(found - expected) / expected).max() <= BOUND  # the largest relative difference
