"""What is a converted model's own is in float32 in functions that a program applies to it itself."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec

HALF = ("float16", "bfloat16")


def _converted(compute, size=4):
    layer = L.Linear(size, size, initialW=np.full((size, size), 1.5, np.float32))
    mixprec.convert(layer, compute=compute)
    return layer


@pytest.mark.parametrize("compute", HALF)
def test_a_sum_that_float16_cannot_hold(compute):
    layer = _converted(compute, 300)
    total = F.sum(F.absolute(layer.W))
    assert (total.dtype, float(total.array)) == (np.float32, 135000)
    total.backward()
    assert layer.W.grad.dtype == layer.W.dtype
    np.testing.assert_array_equal(layer.W.grad.astype("f"), 1)


@pytest.mark.parametrize("backprop", [True, False])
@pytest.mark.parametrize("compute", HALF)
def test_every_function_and_operator(compute, backprop):
    """What meets the parameter is widened, too; without a graph it is the same."""
    layer = _converted(compute)
    narrow = chainer.Variable(np.ones((4, 4), layer.W.dtype))
    with chainer.using_config("enable_backprop", backprop):
        for y in (layer.W * 2, layer.W[0], layer.W.T, F.matmul(narrow, layer.W), F.cast(layer.W, "float32"), -layer.b):
            assert y.dtype == np.float32


@pytest.mark.parametrize("options", [{"layout": "nchw"}, {}, {"compute": "bfloat16"}])
def test_variables_that_the_model_keeps(options):
    """As ``L.Classifier`` keeps ``y``: all functions take them with a loss, targets and constants in float32."""
    x, t = np.ones((2, 4), np.float32), np.array([0, 1], np.int32)
    model = L.Classifier(L.Linear(4, 3))
    mixprec.convert(model, x, **options)
    loss = model(x, t) + F.mean(model.y**2)
    target = np.full((2, 3), 70000, np.float32)
    results = F.softmax(model.y), model.y - target, target * model.y, F.mean_squared_error(model.y, target)
    assert F.accuracy(model.y, t).dtype == np.float32
    for y in (loss, *results):
        assert y.dtype == np.float32
        assert np.isfinite(y.array).all()
    model.cleargrads()
    (loss + F.sum(results[1])).backward()
    assert model.predictor.b.grad.dtype == model.predictor.W.dtype
    probabilities = F.softmax(F.cast(model.predictor(x), "float32")).array
    expected = probabilities.sum(axis=0) / 2 - [0.5, 0.5, 0] + model.predictor(x).array.sum(axis=0) / 3 + 2
    np.testing.assert_allclose(model.predictor.b.grad.astype("f"), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("compute", HALF)
def test_results_of_fused_layers_that_the_model_keeps(compute):
    kept = []
    layers = L.Convolution2D(3, 4, 3), L.BatchNormalization(4), F.relu, lambda h: kept.append(h) or h, L.Linear(None, 2)
    model = chainer.Sequential(*layers)
    x = np.ones((2, 3, 5, 5), np.float32)
    assert mixprec.convert(model, x, compute=compute).fused["ReLU"] == 1
    loss = F.sum(model(x))
    assert (loss + F.mean(kept[-1])).dtype == np.float32


@pytest.mark.parametrize("hide", [lambda h: lambda: h, lambda h: iter([h]).__next__])
def test_variables_that_leave_where_results_are_not_looked_into(hide):
    layer = _converted("bfloat16")
    model = chainer.Sequential(layer, hide)
    mixprec.convert(model, compute="bfloat16")
    assert F.sum(model(np.ones((2, 4), np.float32))() + np.ones(4, np.float32)).dtype == np.float32


@pytest.mark.parametrize("compute", HALF)
def test_arrays_beside_a_parameter(compute):
    """As in elastic weight consolidation: an array keeps the bits that 16 of them do not have."""
    layer, earlier = _converted(compute), np.full((4, 4), 1.5 - 2.0**-16, np.float32)
    np.testing.assert_array_equal((layer.W - earlier).array, 2.0**-16)
    np.testing.assert_array_equal((earlier - layer.W).array, -(2.0**-16))


def test_gradients_of_gradients_are_in_the_compute_dtype():
    """There Chainer's backward passes apply functions to parameters."""
    layer = _converted("float16")
    mixprec.convert(layer, layout="nchw")
    x = chainer.Variable(np.ones((2, 4), np.float32))
    (gx,) = chainer.grad([F.sum(layer(x) ** 2)], [x], enable_double_backprop=True)
    F.sum(gx).backward()
    np.testing.assert_array_equal(layer.W.grad.dtype, np.float16)


def test_float16_parameters_of_a_plain_model_stay_as_they_are():
    _converted("float16")
    with chainer.using_config("dtype", np.float16):
        plain = L.Linear(4, 4)
    assert F.sum(plain.W).dtype == plain(np.ones((2, 4), np.float16)).dtype == np.float16


@pytest.mark.parametrize("compute", HALF)
def test_a_forward_pass_that_is_repeated_in_a_backward_pass(compute):
    """F.forget gives the gradients that the function has without it."""
    layer, x = _converted(compute), np.linspace(-1, 1, 8, dtype="f").reshape(2, 4)
    gradients = []
    for call in (lambda function, x: function(x), F.forget):
        layer.cleargrads()
        variable = chainer.Variable(x)
        F.sum(call(lambda x: F.linear(x, layer.W, layer.b), variable) ** 2).backward()
        gradients.append((variable.grad, layer.W.grad.astype("f")))
    for expected, found in zip(*gradients, strict=True):
        np.testing.assert_array_equal(found, expected)
