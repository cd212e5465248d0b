"""K-FAC where a program does something else than one backward pass and one update of a whole model."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.kfac.layers import ScaleLayer


def _batch(seed=0, size=16):
    random = np.random.RandomState(seed)
    return random.randn(size, 6).astype(np.float32), random.randint(0, 3, size).astype(np.int32)


def _new(kfac=None, model=None, scale=2.0**10, **settings):
    """A model of two linear layers in float32, its optimizer, and its K-FAC."""
    np.random.seed(0)
    model = model or L.Classifier(chainer.Sequential(L.Linear(6, 5), F.tanh, L.Linear(5, 3)))
    kfac = kfac or mixprec.KFAC(0.1, **settings)
    sgd = chainer.optimizers.SGD(0.1)
    optimizer = mixprec.MixedPrecisionOptimizer(sgd, scale, preconditioner=kfac).setup(model)
    mixprec.convert(model, compute="float32")
    return model, optimizer, kfac


def _weights(model):
    return {name: param.array.copy() for name, param in model.namedparams()}


def _assert_equal(found, expected):
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_layers_that_never_had_an_inverse_go_on_with_their_gradients():
    """While only another parameter learns nothing is inverted; the next step with gradients inverts at once."""
    model = L.Classifier(chainer.Sequential(L.Linear(6, 5), F.tanh, L.Linear(5, 3), L.Scale(1, (3,))))
    model, optimizer, kfac = _new(model=model, inverse_every=20)
    for _ in range(12):
        model.cleargrads()
        optimizer.scale_loss(model(*_batch())).backward()
        for name, param in model.namedparams():
            if not name.startswith("/predictor/3/"):
                param.cleargrad()
        optimizer.update()
    assert kfac.kind == 2
    before = _weights(model)
    optimizer.update(model, *_batch())
    assert all((param.array != before[name]).any() for name, param in model.namedparams())


@pytest.mark.parametrize("discarded", ["finite", "nan"])
def test_a_pass_whose_gradients_were_cleared_does_not_count(discarded):
    runs = []
    for with_it in (False, True):
        model, optimizer, _ = _new()
        if with_it:
            x, t = _batch(7)
            model.cleargrads()
            with np.errstate(invalid="ignore"):
                optimizer.scale_loss(model(x * (np.nan if discarded == "nan" else 3), t)).backward()
        model.cleargrads()
        optimizer.scale_loss(model(*_batch())).backward()
        optimizer.update()
        assert not optimizer.last_step_skipped
        runs.append(_weights(model))
    _assert_equal(runs[1], runs[0])


def test_a_pass_that_was_not_seen_is_an_error_at_first_and_announced_later(announced):
    model, optimizer, _ = _new(scale=None)
    model.cleargrads()
    model(*_batch()).backward()
    with pytest.raises(ValueError, match=r"^KFAC has seen no backward pass: call optimizer.update\(lossfun"):
        optimizer.update()
    optimizer.update(model, *_batch())
    model.cleargrads()
    model(*_batch(1)).backward()
    optimizer.update()
    assert "uses the second moments of earlier steps" in announced.text


def test_a_layer_that_is_replaced_begins_afresh():
    model, optimizer, kfac = _new()
    optimizer.update(model, *_batch())
    model.predictor[2].W = chainer.Parameter(np.ones((4, 5), np.float32))
    model.predictor[2].b = chainer.Parameter(np.zeros(4, np.float32))
    for param in (model.predictor[2].W, model.predictor[2].b):
        param.update_rule = chainer.optimizers.SGD(0.1).create_update_rule()
    for number in range(3):
        optimizer.update(model, *_batch(number))
    assert "2 layers" in kfac.report()
    assert {layer.sums[1].shape for layer in kfac._layers} == {(1, 5, 5), (1, 4, 4)}


def test_frozen_layers_take_no_part_in_kl_clip():
    """The other layer moves as it does when the frozen one has no gradient at all."""
    runs = []
    for clears in (False, True):
        model, optimizer, _ = _new(kl_clip=1e-4)
        model.predictor[0].disable_update()
        model.cleargrads()
        optimizer.scale_loss(model(*_batch())).backward()
        if clears:
            model.predictor[0].cleargrads()
        optimizer.update()
        runs.append(_weights(model))
    _assert_equal(runs[1], runs[0])


def test_one_kfac_is_for_one_optimizer():
    model, _, kfac = _new()
    with pytest.raises(ValueError, match="a KFAC is for one optimizer and one model"):
        _new(kfac, model)


def test_the_matrix_of_a_single_image_stays_positive_definite():
    """Its determinant is 0 without the damping, and what rounding leaves of it may be anything."""
    layer = ScaleLayer(["gamma", "beta"], 1000, np.zeros(1))
    random = np.random.RandomState(0)
    dgamma, dbeta = random.randn(2, 1000).astype(np.float32) * 1000
    layer.sums[0][...] = [dgamma * dgamma, dgamma * dbeta, dbeta * dbeta]
    layer.invert(None, np.float32(0.01))
    gamma, both, beta = layer.new_inverses[0].astype(np.float64)
    assert np.isfinite(layer.new_inverses[0]).all()
    assert (gamma > 0).all()
    assert (beta > 0).all()
    # An inverse of damping alone is 100; along the gradient it is next to 0, and never below by more than a rounding.
    assert (gamma <= 101).all()
    assert (beta <= 101).all()
    along = gamma * dgamma**2 + 2 * both * dgamma * dbeta + beta * dbeta**2
    assert (along >= -1e-4 * (gamma * dgamma**2 + beta * dbeta**2)).all()
