"""Promise 7: every kind of parameter, and whatever is written into one from outside."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
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


def test_a_parameter_without_gradient_moves_on_as_in_chainer():
    """Its momentum carries it, and weight decay pulls it, as in the same run by plain Chainer."""
    models = [chainer.ChainList(L.Linear(3, 2, initialW=0.5), L.Linear(3, 2, initialW=0.25)) for _ in "ab"]
    plain = optimizers.MomentumSGD(lr=0.5).setup(models[0])
    mixprec.convert(models[1], compute="float32")
    wrapped = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.5)).setup(models[1])
    for optimizer in (plain, wrapped):
        optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.125))
        optimizer.update(_loss(*optimizer.target))
        optimizer.update(_loss(optimizer.target[0]))
    for expected, found in zip(models[0].params(), models[1].params(), strict=True):
        np.testing.assert_array_equal(found.array, expected.array)


@pytest.mark.parametrize("compute", ["float16", "float32"])
def test_a_shared_parameter_is_unscaled_once_and_updated_as_in_chainer(compute):
    """Chainer updates a parameter as often as it is registered; the gradient is divided by the scale once."""

    def model():
        shared = L.Linear(3, 3, initialW=np.eye(3, dtype="f"))
        return chainer.ChainList(shared, shared)

    reference = optimizers.MomentumSGD(lr=0.125).setup(model())
    converted = model()
    mixprec.convert(converted, compute=compute)
    wrapped = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.125), 64).setup(converted)
    for optimizer in (reference, wrapped):
        for _ in range(2):
            optimizer.update(_loss(*optimizer.target))
    # halves and quarters: exact in FP16
    np.testing.assert_array_equal(wrapped.master(converted[0].W).array, reference.target[0].W.array)


def test_zero_size_and_0_d_parameters():
    """They take part in the finite check, the update, and a skipped step."""

    class Odd(chainer.Link):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.empty = chainer.Parameter(np.zeros((0, 3), np.float16))
                self.scalar = chainer.Parameter(np.array(1.0, np.float16))

        def forward(self, factor):
            return F.sum(F.cast(self.empty, "float32")) + F.cast(self.scalar, "float32") * factor

    model = Odd()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.25), 8).setup(model)
    optimizer.update(model, np.array(2.0, np.float32))
    np.testing.assert_array_equal(model.scalar.array, 0.5)
    optimizer.update(model, np.array(np.nan, np.float32))
    np.testing.assert_array_equal(model.scalar.array, 0.5)
    assert (optimizer.skipped, optimizer.t) == (1, 1)
    assert model.empty.array.shape == (0, 3)


def test_parameters_added_after_setup():
    """They are saved, loaded and checked like the others, and updated once they have an update rule, as in Chainer."""
    model = chainer.ChainList(L.Linear(3, 2))
    optimizer = _wrap(model)
    optimizer.update(_loss(model[0]))
    late = L.Linear(3, 2)
    mixprec.convert(late)
    model.append(late)
    before = late.W.array.copy()
    optimizer.update(_loss(*model))
    np.testing.assert_array_equal(late.W.array, before)
    for param in late.params():
        param.update_rule = optimizer.create_update_rule()
    optimizer.update(_loss(*model))
    assert not np.array_equal(late.W.array, before)
    assert optimizer.master(late.W).update_rule is late.W.update_rule
    saved = serializers.DictionarySerializer()
    model.serialize(saved)
    assert saved.target["1/W"].dtype == np.float32


def _write_elements(param, values, tmp_path):
    param.array[...] = values


def _write_array(param, values, tmp_path):
    param.array = values.astype(np.float16)


def _copydata(param, values, tmp_path):
    param.copydata(chainer.Parameter(values))


def _load_npz(param, values, tmp_path):
    np.savez(tmp_path / "file.npz", W=values)
    serializers.load_npz(tmp_path / "file.npz", _load_npz.link)


@pytest.mark.parametrize("write", [_write_elements, _write_array, _copydata, _load_npz])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_a_write_into_a_live_parameter_reaches_the_master(write, with_gradient, tmp_path):
    """Elements, the array itself, ``copydata``, a file; with a learning rate of 0 nothing else moves."""
    model = L.Linear(3, 2, nobias=True)
    optimizer = _wrap(model)
    optimizer.update(_loss(model))
    optimizer.lr = 0.0
    optimizer.momentum = 0.0
    values = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    _load_npz.link = model
    write(model.W, values, tmp_path)
    if with_gradient:
        optimizer.update(_loss(model))
    else:
        model.cleargrads()
        optimizer.update()
    exact = write in (_copydata, _load_npz)  # the others have rounded before mixprec sees it
    kept = values if exact else values.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(optimizer.master(model.W).array, kept)
    np.testing.assert_array_equal(model.W.array, values.astype(np.float16))


def test_a_write_leaves_the_bits_of_all_other_elements():
    """An element that nobody wrote keeps what its master has beyond FP16."""
    model = L.Linear(3, 2, nobias=True)
    optimizer = _wrap(model, optimizers.Adam())
    for _ in range(3):
        optimizer.update(_loss(model))
    before = optimizer.master(model.W).array.copy()
    assert not np.array_equal(before, before.astype(np.float16))
    model.W.array[0, 0] = 0.5
    after = optimizer.master(model.W).array
    assert after[0, 0] == 0.5
    after[0, 0] = before[0, 0]
    np.testing.assert_array_equal(after, before)


def test_a_write_before_saving_is_in_the_file():
    """The file is of the model as it is, not as the last update left it."""
    model = L.Linear(3, 2, nobias=True)
    optimizer = _wrap(model)
    optimizer.update(_loss(model))
    model.W.array[...] = 0.25
    saved = serializers.DictionarySerializer()
    model.serialize(saved)
    np.testing.assert_array_equal(saved.target["W"], np.full((2, 3), 0.25, np.float32))


def test_an_array_of_another_shape_is_an_error():
    model = L.Linear(3, 2, nobias=True)
    optimizer = _wrap(model)
    optimizer.update(_loss(model))
    model.W.array = np.ones((2, 5), np.float16)
    with pytest.raises(ValueError, match=r"/W had shape \(2, 3\) and has \(2, 5\) now: call setup\(\) again"):
        optimizer.update(lambda: F.sum(model(np.ones((1, 5), np.float32))))
    optimizer.setup(model).update(lambda: F.sum(model(np.ones((1, 5), np.float32))))
    assert optimizer.master(model.W).shape == (2, 5)


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
