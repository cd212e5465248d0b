"""Second moments and preconditioned gradients of every kind of layer, beside FP64."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec import functions, links
from tests.cases import in_turn
from tests.kfac import references
from tests.kfac.networks import NETWORKS, batch, build, loss

DAMPING = 0.1


def _step(model, x, t, lossfun=loss, **options):
    return references.first_step(*references.wrapped(model, damping=DAMPING, **options), lossfun, x, t)


def _expected(model, x, t, lossfun=loss):
    return references.expected_step(model, lossfun, x, t, DAMPING)


@pytest.mark.parametrize(
    ("name", "fuse"), [*((name, None) for name in NETWORKS), ("conv+BN+ReLU", False), ("two of all", False)]
)
def test_a_step_beside_fp64(name, fuse):
    references.assert_step(_step(build(name), *batch(0), fuse=fuse), _expected(build(name), *batch(0)))


@pytest.mark.parametrize(
    ("name", "compute"), in_turn(["linear", "stride", "groups", "conv+BN", "BN of rows"], ["float16", "bfloat16"])
)
def test_a_step_in_16_bits_beside_fp64(name, compute):
    """Factors to what rounding allows.

    An activation, or a gradient, is rounded in each of up to eight layers, forward and backward, each time by at most
    2^-11 (2^-8) of itself, and what is behind it sees the sum of such errors, which is no larger relative to its norm.
    A product of two has twice that: 16 * 2^-11 (2^-8). The sums themselves are of float32.
    """
    bound = 16 * 2.0 ** (-11 if compute == "float16" else -8)
    data = batch(0, (32, 3, 6, 6))
    references.assert_moments(_step(build(name), *data, compute=compute), _expected(build(name), *data), bound)


@pytest.mark.parametrize("name", ["conv+BN+ReLU", "add"])
def test_statistics_that_a_convolution_takes(name):
    model = build(name)
    mixprec.convert(model, batch(0)[0], compute="float32", conv_statistics=True)
    found = references.first_step(*references.optimizer_of(model, damping=DAMPING), loss, *batch(0))
    references.assert_step(found, _expected(build(name), *batch(0)))


def test_the_links_of_mixprec():
    np.random.seed(0)
    model = chainer.Sequential(links.Linear(6, 5), F.tanh, links.Linear(5, 4))
    plain = chainer.Sequential(L.Linear(6, 5), F.tanh, L.Linear(5, 4))
    plain.copyparams(model)
    data = batch(0, (7, 6))
    references.assert_step(
        references.first_step(*references.optimizer_of(model, damping=DAMPING), loss, *data), _expected(plain, *data)
    )


@pytest.mark.parametrize("batched", [True, False])
def test_weights_move_by_the_preconditioned_gradient(batched):
    """Without a hook, by SGD."""
    model = build("two of all")
    before = {name: param.array.copy() for name, param in model.namedparams()}
    optimizer, _ = references.wrapped(model, chainer.optimizers.SGD(0.5), damping=DAMPING, batched=batched)
    optimizer.update(loss, model, *batch(0))
    for name, gradient in _expected(build("two of all"), *batch(0)).gradients.items():
        moved = before[name] - dict(model.namedparams())[name].array
        bound = 2.0**-23 * np.linalg.norm(before[name]) / np.linalg.norm(0.5 * gradient)
        references.assert_near(moved, 0.5 * gradient, 1e-4 + bound, name)


def test_both_triangles_are_stored_near_each_other():
    """The lower one counts, and users may look at the whole matrix."""
    for averages in _step(build("two of all"), *batch(0)).moments.values():
        for matrices in averages:
            if matrices.ndim == 3:
                references.assert_near(matrices, matrices.transpose(0, 2, 1).astype(np.float64), 1e-5)


class Dropping(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = L.Convolution2D(3, 3, 1, nobias=True)
            self.conv = L.Convolution2D(3, 3, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(3)

    def forward(self, x):
        x = self.stem(x)
        return F.relu(functions.stochastic_depth(self.bn(self.conv(x)), 0.5) + x)


def test_images_that_a_fused_block_drops_have_no_share_in_its_moments():
    """As in the block that is not fused, in which gradients come to the batch normalization multiplied already."""
    x, target = np.random.RandomState(0).normal(size=(2, 12, 3, 6, 6)).astype(np.float32)

    def lossfun(model, x, t):
        return F.sum((model(x) - t.astype(x.dtype)) ** 2) / len(x)

    steps = []
    for fuse in (None, False):
        np.random.seed(0)
        model = Dropping()
        report = mixprec.convert(model, x, compute="float32", fuse=fuse)
        assert report.fused["add + ReLU"] == (fuse is None)
        functions.reset_dropout()
        np.random.seed(1)
        steps.append(references.first_step(*references.optimizer_of(model, damping=DAMPING), lossfun, x, target))
    references.assert_step(*steps)
