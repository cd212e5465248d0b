"""Which layers take part, in models in which not all is as usual; all others go on with their gradients."""

import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from tests.kfac import references
from tests.kfac.networks import batch, build, loss
from tests.kfac.references import (
    assert_moments,
    assert_near,
    assert_same,
    expected_step,
    first_step,
    layer_of,
    optimizer_of,
    seen_by_hooks,
    state_of,
    wrapped,
)

DAMPING = 0.1
ROWS = (8, 5)


def rows(number):
    """Returns a batch of rows and labels."""
    return batch(number, ROWS)


class Net(chainer.Chain):
    """Two layers that are used in each step, and one that is used if asked for."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.first = L.Linear(5, 6)
            self.last = L.Linear(6, 4)
            self.other = L.Linear(6, 4)

    def forward(self, x, with_other=False):
        h = F.tanh(self.first(x))
        return self.last(h) + self.other(h) if with_other else self.last(h)


def _loss(model, x, t, **options):
    return F.softmax_cross_entropy(model(x, **options), t)


def _gradients(model, x, t):
    """Plain gradients in FP64."""
    return references.gradients_of(references.doubled(model), lambda model: _loss(model, x.astype(np.float64), t))[1]


# --- without a gradient


def test_a_layer_that_is_not_used_is_not_touched():
    model = Net()
    optimizer, kfac = wrapped(model, damping=DAMPING)
    weights = model.other.W.array.copy()
    for step in range(3):
        optimizer.update(_loss, model, *rows(step))
    np.testing.assert_array_equal(model.other.W.array, weights)
    assert list(kfac._collector.layers) == ["/last/W", "/first/W"]
    assert kfac.report().splitlines() == [
        "2 layers: 2 by the moments of inputs and outputs, 0 batch normalizations; the largest matrix is 7 x 7",
        "not preconditioned: /other/W, /other/b",
    ]


def test_a_layer_that_is_used_now_and_then_keeps_what_it_has():
    model = Net()
    optimizer, kfac = wrapped(model, damping=DAMPING)
    for step, used in enumerate([False, True, False, True]):
        before = state_of(optimizer, kfac)
        optimizer.update(_loss, model, *rows(step), with_other=used)
        after = state_of(optimizer, kfac)
        own = [name for name in before if name.endswith("of /other/W")]
        if step == 2:
            assert len(own) == 5
            averages = [name for name in own if name.startswith(("array 0", "array 1", "array 4"))]
            assert_same({name: after[name] for name in averages}, {name: before[name] for name in averages})
            np.testing.assert_array_equal(after["master /other/W"], before["master /other/W"])
    assert layer_of(kfac, "/other/W").steps == 2
    assert layer_of(kfac, "/first/W").steps == 4


@pytest.mark.slow
def test_a_layer_that_comes_late_has_inverses_in_its_first_step_with_moments():
    """Whatever the schedule says of inverses; in a plain step before that it goes on with its gradient."""
    model = Net()
    optimizer, kfac = wrapped(model, chainer.optimizers.SGD(0.0), damping=DAMPING, factor_every=5, inverse_every=10)
    seen = seen_by_hooks(optimizer)
    for step in range(16):
        if step >= 13:
            assert kfac.kind == (1 if step == 15 else 0)
            plain = Net()
            expected = expected_step(plain, functools.partial(_loss, with_other=True), *rows(step), DAMPING)
        optimizer.update(_loss, model, *rows(step), with_other=step >= 13)
        if step == 13:
            assert_near(seen.found["/other/W"], plain.other.W.grad, 1e-5)
    assert kfac.kind == 2
    assert layer_of(kfac, "/other/W").steps == 1
    assert_near(np.tril(layer_of(kfac, "/other/W").averages[0]), np.tril(expected.moments["/other/W"][0]), 1e-5)
    assert_near(seen.found["/other/W"], expected.gradients["/other/W"], 1e-4)


# --- frozen


def test_links_that_are_not_updated_keep_their_weights():
    """All others as if nothing were frozen."""
    free, frozen = Net(), Net()
    found = []
    for model in (free, frozen):
        optimizer, kfac = wrapped(model, damping=DAMPING)
        if model is frozen:
            model.first.disable_update()
        optimizer.update(_loss, model, *rows(0))
        found.append({name: np.array(array) for name, array in kfac.state().items()})
    assert_same(found[1], found[0])
    np.testing.assert_array_equal(frozen.first.W.array, Net().first.W.array)
    np.testing.assert_array_equal(frozen.last.W.array, free.last.W.array)
    assert (free.first.W.array != frozen.first.W.array).any()


@pytest.mark.parametrize("frozen", ["W", "b"])
def test_parameters_that_require_no_gradient(frozen):
    """Without its bias a layer is one without bias; without its weights none, and the bias has its gradient."""
    x, t = rows(0)
    plain = references.doubled(Net())
    calls, gradients = references.gradients_of(plain, lambda model: _loss(model, x.astype(np.float64), t))
    model = Net()
    param = getattr(model.first, frozen)
    param._requires_grad = param.node._requires_grad = False  # Chainer asks for it where a parameter is made
    found = first_step(*wrapped(model, damping=DAMPING), _loss, x, t)
    if frozen == "W":
        assert list(found.moments) == ["/last/W"]
        assert_near(found.gradients["/first/b"], gradients["/first/b"], 1e-5)
    else:
        a, g = references.moments_of(calls["/first"])
        inverses = references.inverses_of([a[:, :-1, :-1], g], DAMPING)
        (expected,) = references.preconditioned(plain.first, [gradients["/first/W"]], inverses)
        assert_near(found.gradients["/first/W"], expected, 1e-4)
    np.testing.assert_array_equal(param.array, getattr(Net().first, frozen).array)


def test_too_large_layers_go_on_with_their_gradients():
    x, t = rows(0)
    found = first_step(*wrapped(Net(), damping=DAMPING, largest=6), _loss, x, t)
    assert list(found.moments) == ["/first/W"]
    assert found.kfac.report().splitlines() == [
        "1 layer: 1 by the moments of inputs and outputs, 0 batch normalizations; the largest matrix is 6 x 6",
        "not preconditioned: /last/W (its matrix would have 7 rows), /last/b, /other/W, /other/b",
    ]
    gradients = _gradients(Net(), x, t)
    for name in ("/last/W", "/last/b"):
        assert_near(found.gradients[name], gradients[name], 1e-5, name)


def test_all_layers_too_large():
    model = Net()
    optimizer, _ = wrapped(model, damping=DAMPING, largest=1)
    before = model.first.W.array.copy()
    with pytest.raises(ValueError, match="the smallest matrix of a layer has 6 rows: raise largest"):
        optimizer.update(_loss, model, *rows(0))
    np.testing.assert_array_equal(model.first.W.array, before)
    assert optimizer.t == 0


# --- other models


def test_a_model_that_was_not_converted():
    """One line; nothing has changed, and after a conversion it goes on."""
    model = Net()
    optimizer, _ = optimizer_of(model, damping=DAMPING)
    for _ in range(2):
        with pytest.raises(ValueError, match="KFAC has found no layer") as error:
            optimizer.update(_loss, model, *rows(0))
        assert "mixprec.convert(model)" in str(error.value)
        assert "\n" not in str(error.value)
    for name, param in Net().namedparams():
        np.testing.assert_array_equal(dict(model.namedparams())[name].array, param.array)
    assert (optimizer.t, optimizer.skipped) == (0, 0)
    mixprec.convert(model, compute="float32")
    optimizer.update(_loss, model, *rows(0))
    again, _ = wrapped(other := Net(), damping=DAMPING)
    again.update(_loss, other, *rows(0))
    np.testing.assert_array_equal(model.first.W.array, other.first.W.array)


def test_a_model_in_nchw():
    """Chainer computes it: its functions tell of no layer."""
    model = build("conv")
    optimizer, _ = optimizer_of(model)
    mixprec.convert(model, layout="nchw")
    with pytest.raises(ValueError, match="KFAC has found no layer that mixprec computes in NHWC"):
        optimizer.update(loss, model, *batch(0))


def test_a_parameter_with_two_names_is_reported_once():
    model = Net()
    model.other.W = model.last.W
    optimizer, kfac = wrapped(model, damping=DAMPING)
    optimizer.update(_loss, model, *rows(0))
    assert kfac.report().splitlines()[1] == "not preconditioned: /other/b"


class Shared(chainer.Chain):
    """A layer and a batch normalization that are applied twice."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.linear = L.Linear(5, 5)
            self.conv = L.Convolution2D(3, 3, 3, pad=1)
            self.bn = L.BatchNormalization(3)
            self.last = L.Linear(3 * 36, 4)

    def forward(self, x):
        if x.ndim == 2:
            return self.linear(F.tanh(self.linear(x)))[:, :4]
        h = F.tanh(self.bn(self.conv(x)))
        return self.last(F.tanh(self.bn(self.conv(h))))


@pytest.mark.parametrize("size", [ROWS, (8, 3, 6, 6)])
def test_a_layer_that_is_applied_twice(size):
    """Positions are those of both uses; n is still the number of images, by which the loss is divided."""
    found = first_step(*wrapped(Shared(), damping=DAMPING), loss, *batch(0, size))
    expected = expected_step(Shared(), loss, *batch(0, size), DAMPING)
    assert_moments(found, expected)
    for name, gradient in expected.gradients.items():
        assert_near(found.gradients[name], gradient, 1e-4, name)


def test_statistics_that_are_fixed():
    """A normalization by running statistics is no layer of K-FAC; its gradients stay."""
    model = build("conv+BN+ReLU")
    optimizer, kfac = wrapped(model, damping=DAMPING)
    with chainer.using_config("train", False):
        optimizer.update(loss, model, *batch(0))
    of_normalization = {name for name, _ in model.namedparams() if name.endswith(("gamma", "beta"))}
    assert len(of_normalization) == 2
    assert kfac._collector.layers.keys().isdisjoint(of_normalization)
    assert all(name in kfac.report() for name in of_normalization)


@pytest.mark.slow
def test_setup_once_more_begins_afresh():
    model = Net()
    optimizer, kfac = wrapped(model, damping=DAMPING, factor_every=2, inverse_every=4)
    for step in range(12):
        optimizer.update(_loss, model, *rows(step))
    optimizer.setup(model)
    assert (kfac.state(), kfac.kind) == ({}, 2)
    optimizer.update(_loss, model, *rows(0))
    assert layer_of(kfac, "/first/W").steps == 1
