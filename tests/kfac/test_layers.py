"""Second moments and preconditioned gradients of every kind of layer, beside FP64."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from tests.kfac import references
from tests.kfac.networks import NETWORKS, batch, build, loss
from tests.kfac.references import assert_near, layer_of, wrapped

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
