"""Promise 7: every kind of parameter, and whatever is written into one from outside."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizers, serializers

import mixprec


def _wrap(model, inner=None, loss_scale=8):
    mixprec.convert(model)
    return mixprec.MixedPrecisionOptimizer(inner or optimizers.MomentumSGD(lr=0.1), loss_scale).setup(model)


def _loss(*links):
    """Sums up the outputs of linear links for a batch of ones."""
    return lambda: sum(F.sum(link(np.ones((2, 3), np.float32))) for link in links)


def test_arrays_are_updated_in_place_and_are_the_rounded_masters():
    """A parameter's array is never reallocated; an FP32 parameter shares it with its master."""
    model = chainer.Sequential(L.Linear(3, 3), L.BatchNormalization(3), L.Linear(3, 3))
    optimizer = _wrap(model)
    arrays = [param.array for param in model.params()]
    for _ in range(3):
        optimizer.update(_loss(model))
    for param, array in zip(model.params(), arrays, strict=True):
        assert param.array is array
        assert optimizer.master(param).dtype == np.float32
        np.testing.assert_array_equal(optimizer.master(param).array.astype(param.dtype), array)
    assert model[0].W.dtype == np.float16
    assert optimizer.master(model[1].gamma).array is model[1].gamma.array


def test_lazy_parameters_those_without_gradient_and_disabled_rules():
    """Uninitialized ones get a master with their first update; the others keep their values."""
    model = chainer.ChainList(L.Linear(None, 2), L.Linear(3, 2), L.Linear(3, 2), L.Linear(None, 2))
    optimizer = _wrap(model, optimizers.Adam())
    model[2].disable_update()
    before = [link.W.array.copy() for link in (model[1], model[2])]
    for _ in range(2):
        optimizer.update(_loss(model[0], model[2]))
    assert model[0].W.dtype == np.float16
    assert optimizer.master(model[0].W).dtype == np.float32
    np.testing.assert_array_equal(model[1].W.array, before[0])
    np.testing.assert_array_equal(model[2].W.array, before[1])
    assert model[3].W.array is None
    assert optimizer.master(model[0].W).update_rule is model[0].W.update_rule
    assert [link.W.update_rule.t for link in model] == [2, 2, 0, 2]


def test_a_write_before_saving_is_in_the_file():
    """The file is of the model as it is, not as the last update left it."""
    model = L.Linear(3, 2, nobias=True)
    optimizer = _wrap(model)
    optimizer.update(_loss(model))
    model.W.array[...] = 0.25
    saved = serializers.DictionarySerializer()
    model.serialize(saved)
    np.testing.assert_array_equal(saved.target["W"], np.full((2, 3), 0.25, np.float32))


def test_converting_a_live_model_to_another_dtype_keeps_the_master():
    """FP16 to FP32 and back, in the middle of a run; what FP16 could not hold comes back."""
    model = L.Linear(3, 2, nobias=True)
    optimizer = _wrap(model, optimizers.Adam())
    optimizer.update(_loss(model))
    before = optimizer.master(model.W).array.copy()
    mixprec.convert(model, compute="float32")
    np.testing.assert_array_equal(optimizer.master(model.W).array, before)
    optimizer.update(_loss(model))
    assert optimizer.master(model.W).array is model.W.array
    mixprec.convert(model, compute="float16")
    optimizer.update(_loss(model))
    assert optimizer.t == 3
    assert model.W.dtype == np.float16
