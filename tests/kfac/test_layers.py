"""Second moments and preconditioned gradients of every kind of layer, beside FP64."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec import functions, links
from tests.kfac import references
from tests.kfac.networks import NETWORKS, batch, build, loss
from tests.kfac.references import assert_near, wrapped

DAMPING = 0.1
FACTORS, GRADIENTS = 1e-5, 1e-4  # relative to the norm


def first_step(model, lossfun=loss, data=None, **options):
    """Runs a step; returns the second moments of K-FAC and the gradients that hooks see, by name."""
    optimizer, kfac = wrapped(model, damping=DAMPING, **options)
    optimizer.add_hook(seen := references.Gradients())
    optimizer.update(lossfun, model, *(batch(0) if data is None else data))
    assert not optimizer.skipped
    return {name: layer.averages for name, layer in kfac._collector.layers.items()}, seen.found


def expected_step(model, lossfun=loss, data=None):
    """What :func:`first_step` should return."""
    x, t = batch(0) if data is None else data
    return references.step(references.doubled(model), lambda model: lossfun(model, x.astype(np.float64), t), DAMPING)


def assert_step(found, expected, factors=FACTORS, gradients=GRADIENTS):
    """Asserts that moments and gradients of a step are near those of FP64."""
    assert found[0].keys() == expected[0].keys()
    for name, moments in expected[0].items():
        for ours, theirs in zip(found[0][name], moments, strict=True):
            assert ours.dtype == np.float32
            lower = np.tril if ours.ndim == 3 else np.asarray
            assert_near(lower(ours), lower(theirs), factors, name)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert_near(found[1][name], gradient, gradients, name)


@pytest.mark.parametrize("fuse", [None, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_beside_fp64(name, fuse):
    assert_step(first_step(build(name), fuse=fuse), expected_step(build(name)))


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["linear", "stride", "groups", "depthwise", "conv+BN", "BN alone", "BN of rows"])
def test_a_step_in_16_bits_beside_fp64(name, compute):
    """Factors to what rounding allows.

    An activation, or a gradient, is rounded in each of up to eight layers, forward and backward, each time by at most
    2^-11 (2^-8) of itself, and what is behind it sees the sum of such errors, which is no larger relative to its norm.
    A product of two has twice that: 16 * 2^-11 (2^-8). The sums themselves are of float32.
    """
    bound = 16 * 2.0 ** (-11 if compute == "float16" else -8)
    data = batch(0, (32, 3, 6, 6))
    found = first_step(build(name), data=data, compute=compute)
    expected = expected_step(build(name), data=data)
    assert found[0].keys() == expected[0].keys()
    for first, moments in expected[0].items():
        for ours, theirs in zip(found[0][first], moments, strict=True):
            lower = np.tril if ours.ndim == 3 else np.asarray
            assert_near(lower(ours), lower(theirs), bound, first)


@pytest.mark.parametrize("name", ["conv+BN+ReLU", "add"])
def test_statistics_that_a_convolution_takes(name):
    model = build(name)
    mixprec.convert(model, batch(0)[0], compute="float32", conv_statistics=True)
    optimizer, kfac = references.optimizer_of(model, damping=DAMPING)
    optimizer.add_hook(seen := references.Gradients())
    optimizer.update(loss, model, *batch(0))
    found = {name: layer.averages for name, layer in kfac._collector.layers.items()}, seen.found
    assert_step(found, expected_step(build(name)))


def test_the_links_of_mixprec():
    np.random.seed(0)
    model = chainer.Sequential(links.Linear(6, 5), F.tanh, links.Linear(5, 4))
    plain = chainer.Sequential(L.Linear(6, 5), F.tanh, L.Linear(5, 4))
    plain.copyparams(model)
    x = np.random.RandomState(0).normal(size=(7, 6)).astype(np.float32)
    optimizer, kfac = references.optimizer_of(model, damping=DAMPING)
    optimizer.add_hook(seen := references.Gradients())
    optimizer.update(loss, model, x, data_labels := np.arange(7, dtype=np.int32) % 4)
    found = {name: layer.averages for name, layer in kfac._collector.layers.items()}, seen.found
    assert_step(found, expected_step(plain, data=(x, data_labels)))


@pytest.mark.parametrize("batched", [True, False])
def test_weights_move_by_the_preconditioned_gradient(batched):
    """Without a hook, by SGD."""
    model = build("two of all")
    before = {name: param.array.copy() for name, param in model.namedparams()}
    optimizer, _ = wrapped(model, chainer.optimizers.SGD(0.5), damping=DAMPING, batched=batched)
    optimizer.update(loss, model, *batch(0))
    for name, gradient in expected_step(build("two of all"))[1].items():
        moved = before[name] - dict(model.namedparams())[name].array
        bound = 2.0**-23 * np.linalg.norm(before[name]) / np.linalg.norm(0.5 * gradient)
        assert_near(moved, 0.5 * gradient, GRADIENTS + bound, name)


def test_both_triangles_are_stored_near_each_other():
    """The lower one counts, and users may look at the whole matrix."""
    for averages in first_step(build("two of all"))[0].values():
        for matrices in averages:
            if matrices.ndim == 3:
                assert_near(matrices, matrices.transpose(0, 2, 1).astype(np.float64), FACTORS)


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
        optimizer, kfac = references.optimizer_of(model, damping=DAMPING)
        report = mixprec.convert(model, x, compute="float32", fuse=fuse)
        assert report.fused["add + ReLU"] == (fuse is None)
        optimizer.add_hook(seen := references.Gradients())
        functions.reset_dropout()
        np.random.seed(1)
        optimizer.update(lossfun, model, x, target)
        steps.append(({name: layer.averages for name, layer in kfac._collector.layers.items()}, seen.found))
    assert_step(*steps)
