"""A ResNet-18 built by hand from mixprec.links trains on digits, as plain Chainer's does.

Left to themselves, two float32 runs part within a few steps, whichever code computes them (docs/primitives.md has the
numbers). So each of the steps starts from the same weights here.
"""

import chainer.functions as F
import numpy as np
import pytest
from chainer import optimizers

from mixprec import functions
from mixprec.data.digit_images import load_digits
from models import MODELS
from tests.links.nhwc_resnet import ResNet18

BATCH, STEPS = 16, 3


@pytest.fixture(scope="module")
def digits():
    """Batches of (images (N, 3, 64, 64), labels). With noise: equal pixels would be ties for the max pooling."""
    images, labels = load_digits()
    random = np.random.RandomState(2)
    order = random.permutation(len(images))[: STEPS * BATCH]
    images = np.kron((images[order] / 8 - 1).reshape(-1, 1, 8, 8), np.ones((1, 3, 8, 8)))
    images = (images + random.normal(0, 0.2, images.shape)).astype(np.float32)
    labels = labels[order]
    return [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(order), BATCH)]


def _by_hand(network, x, t):
    images = functions.to_nhwc(x, network.fc.W.dtype)
    return functions.softmax_cross_entropy(network(images), t)


def _plain(network, x, t):
    return F.softmax_cross_entropy(network(x), t)


def _quieter(network):
    """The branches start small, as in every recipe for large batches, so that the first losses fall."""
    for name, param in network.namedparams():
        if name.endswith("bn2/gamma"):
            param.array[...] = 0.25
    return network


def _take_over(target, source):
    """Gives a wrapped network weights, running statistics and momenta of another one."""
    target.target.copyparams(source.target)
    sources = dict(source.target.namedparams())
    for name, param in target.target.namedparams():
        if sources[name].update_rule.state is not None:
            param.update_rule.init_state(param)
            param.update_rule.state["v"][...] = sources[name].update_rule.state["v"]


@pytest.mark.slow
def test_each_step_is_that_of_plain_chainer(digits):
    np.random.seed(0)
    plain, by_hand = _quieter(MODELS["resnet18"](10)), ResNet18(10, "float32")
    ours, theirs = (optimizers.CorrectedMomentumSGD(lr=5e-4).setup(network) for network in (by_hand, plain))
    for x, t in digits:
        _take_over(ours, theirs)
        found, expected = (
            float(optimizer.target.cleargrads() or _step(optimizer, loss_of(optimizer.target, x, t)))
            for optimizer, loss_of in ((ours, _by_hand), (theirs, _plain))
        )
        assert found == pytest.approx(expected, rel=1e-4)
        params = dict(plain.namedparams())
        assert {name for name, _ in by_hand.namedparams()} == set(params)
        for name, param in by_hand.namedparams():
            _assert_close(name, param.array, params[name].array)
        links = dict(plain.namedlinks())
        for name, link in by_hand.namedlinks():
            for statistic in {"avg_mean", "avg_var"} & link._persistent:
                _assert_close(f"{name}/{statistic}", getattr(link, statistic), getattr(links[name], statistic))


def _assert_close(name, found, expected):
    """In the Euclidean norm: one ReLU that opens in one run only changes a few elements more than rounding does."""
    assert np.linalg.norm(found - expected) <= 1e-4 * max(np.linalg.norm(expected), np.sqrt(found.shape[0])), name


def _step(optimizer, loss):
    loss.backward()
    optimizer.update()
    return loss.array
