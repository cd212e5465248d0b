"""Parameters of a converted model are in float32 in functions that a program applies to them itself."""

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
