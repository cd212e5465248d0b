"""Losses of float16 that average over more than 65,504 elements, the largest float16, and labels that do not fit."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

N = 70_000
HALF = 2.0**-11  # relative error of one rounding to float16


def reference(loss, arrays):
    """Value and gradients of ``loss`` in float64."""
    inputs = [chainer.Variable(a.astype("float64") if a.dtype.kind == "f" else a) for a in arrays]
    y = loss(*inputs)
    y.backward()
    return y.array, [x.grad for x in inputs if x.dtype.kind == "f"]


def random(*shape, scale=1.0):
    return (scale * np.random.RandomState(sum(shape)).randn(*shape)).astype("float16")


LABELS = np.random.RandomState(0).randint(0, 2, N).astype("int32")
CASES = {
    "mean_squared_error": (F.mean_squared_error, [random(N), random(2, N)[1]]),
    "mean_squared_error of large sums": (F.mean_squared_error, [random(N, scale=8), random(2, N)[1]]),
    "hinge L1": (F.hinge, [random(N, 2), LABELS]),
    "hinge L2": (lambda x, t: F.hinge(x, t, norm="L2"), [random(N, 2), LABELS]),
    "triplet": (F.triplet, [random(N, 2), random(N, 2)[::-1], random(N, 2) * np.float16(0.5)]),
    "contrastive": (F.contrastive, [random(N, 2), random(N, 2)[::-1], LABELS]),
}


@pytest.mark.parametrize("name", CASES)
def test_mean_over_70000_elements_and_its_gradient(name):
    """The loss is right to one float16 rounding, and the gradient, scaled into range by gy, to a few."""
    loss, arrays = CASES[name]
    value, gradients = reference(loss, arrays)
    inputs = [chainer.Variable(np.ascontiguousarray(a)) for a in arrays]
    y = loss(*inputs)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.array, value, rtol=1.01 * HALF)
    y.grad = np.array(2.0**14, "float16")  # as loss scaling does: gradients of 1/70,000 are subnormal in float16
    y.backward()
    floating = [x for x in inputs if x.dtype.kind == "f"]
    for x, expected in zip(floating, gradients, strict=True):
        assert x.grad.dtype == np.float16
        np.testing.assert_allclose(x.grad, expected * 2.0**14, rtol=2 * HALF, atol=2.0**-17)


@pytest.mark.parametrize("reduce", ["mean", "no"])
def test_float32_and_per_element_losses_are_as_they_were(reduce):
    x, t = random(6, 3).astype("float32"), np.array([0, 1, 2, 0, 1, 2], "int32")
    margin = np.maximum(0, 1 + np.where(np.arange(3) == t[:, None], -x, x))
    expected = margin.sum() / 6 if reduce == "mean" else margin
    y = F.hinge(x, t, reduce=reduce)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.array, expected, rtol=1e-6)


def test_mixed_dtypes_are_still_refused():
    with pytest.raises(chainer.utils.type_check.InvalidType):
        F.mean_squared_error(np.ones(3, "float16"), np.ones(3, "float32"))


def test_second_derivative_of_mean_squared_error_in_float16():
    """d2/dx2 of mean((x - t)**2) is 2/n."""
    x = chainer.Variable(np.arange(4, dtype="float16"))
    y = F.mean_squared_error(x, np.zeros(4, "float16"))
    (gx,) = chainer.grad([y], [x], enable_double_backprop=True)
    (ggx,) = chainer.grad([F.sum(gx)], [x])
    np.testing.assert_array_equal(ggx.array, np.full(4, 0.5, "float16"))


UNFIT = [
    (np.zeros(4, "float32"), TypeError, r"labels must be signed integers; found float32, shape \(4,\); floating "),
    (np.zeros(4, "uint8"), TypeError, r"labels must be signed integers; found uint8, shape \(4,\)$"),
    (np.zeros((4, 1), "int32"), ValueError, r"t must have the shape of x without .*; found \(4, 1\) and \(4, 3\)$"),
    (np.zeros(3, "int32"), ValueError, r"t must have the shape of x without .*; found \(3,\) and \(4, 3\)$"),
]


@pytest.mark.parametrize(("labels", "error", "message"), UNFIT)
def test_labels_that_do_not_fit_are_one_line(labels, error, message):
    with pytest.raises(error, match=f"^softmax_cross_entropy: {message}"):
        F.softmax_cross_entropy(np.zeros((4, 3), "float32"), labels)
    soft = np.full((4, 3), 1 / 3, "float32")
    assert float(F.softmax_cross_entropy(soft, soft).array) == pytest.approx(np.log(3))
