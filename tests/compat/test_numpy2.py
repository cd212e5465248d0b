"""Functions of Chainer that NumPy 2 breaks give the values of NumPy 1 on the CPU."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from mixprec.compat.rebind import Overlay, rebound


def test_gradient_of_as_strided_sums_over_the_windows():
    """Windows of 3 that overlap: inner elements of 5 lie in 1, 2, 3, 2, 1 windows."""
    x = chainer.Variable(np.arange(5, dtype="float16"))
    y = F.as_strided(x, (3, 3), (1, 1), 0)
    (gx,) = chainer.grad([F.sum(y)], [x])
    np.testing.assert_array_equal(gx.array, [1, 2, 3, 2, 1])
    assert gx.dtype == np.float16


def test_gradient_of_as_strided_refuses_integers():
    x = chainer.Variable(np.arange(5))
    with pytest.raises(TypeError, match="Only float"):
        chainer.grad([F.as_strided(x, (3,), (1,), 0)], [x], [chainer.Variable(np.ones(3, "int64"))])


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_resize_images_by_two_of_a_ramp(mode, align_corners):
    """Bilinear interpolation of a linear ramp is the ramp, sampled where the definition says."""
    x = np.tile(np.arange(4, dtype="float32"), (1, 1, 4, 1))
    y = F.resize_images(x, (4, 8), mode=mode, align_corners=align_corners).array
    if mode == "nearest":
        expected = np.arange(8) // 2
    elif align_corners:
        expected = np.linspace(0, 3, 8)
    else:
        expected = np.clip((np.arange(8) + 0.5) / 2 - 0.5, 0, 3)
    np.testing.assert_allclose(y[0, 0], np.tile(expected, (4, 1)), atol=4 * np.finfo("float32").eps)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_categorical_log_prob_picks_the_class(shape):
    p = np.random.RandomState(0).dirichlet(np.ones(shape[-1]), shape[:-1]).astype("float32")
    k = np.random.RandomState(1).randint(0, shape[-1], shape[:-1])
    expected = np.log(np.take_along_axis(p, k[..., None], -1)[..., 0])
    for x in (k, chainer.Variable(k)):
        actual = chainer.distributions.Categorical(p=p).log_prob(x)
        np.testing.assert_allclose(actual.array, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "padding", "expected"), [("uint8", -1, 255), ("int8", 200, -56), ("float16", -1, -1.0)]
)
def test_pad_sequence_takes_integers_modulo_the_range_of_the_dtype(dtype, padding, expected):
    y = F.pad_sequence([np.ones(3, dtype), np.ones(1, dtype)], padding=padding)
    np.testing.assert_array_equal(y.array, [[1, 1, 1], [1, expected, expected]])
    assert y.dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "padding", "expected"), [("uint8", -1, 255), ("int32", -1, -1), ("float16", 0.5, 0.5)]
)
def test_concat_examples_pads_without_a_warning(dtype, padding, expected):
    """NumPy 2.5 deprecates the positional output that Chainer gives np.maximum; the tests turn warnings into errors."""
    batch = chainer.dataset.concat_examples([np.ones(1, dtype), np.ones(3, dtype)], padding=padding)
    np.testing.assert_array_equal(batch, [[1, expected, expected], [1, 1, 1]])
    assert batch.dtype == dtype


def test_fix_rounds_towards_zero_without_a_warning():
    np.testing.assert_array_equal(F.fix(np.array([-1.5, 1.5], "float16")).array, [-1, 1])


def test_maxout_gives_its_initializers_the_shape_of_the_pools_without_a_warning():
    shapes = []

    def fill(array):
        shapes.append(array.shape)
        array[...] = np.arange(array.size).reshape(array.shape)

    link = chainer.links.Maxout(4, 3, 2, initialW=fill, initial_bias=fill)
    assert shapes == [(3, 2, 4), (3, 2)]
    np.testing.assert_array_equal(link.linear.W.array, np.arange(24).reshape(6, 4))
    np.testing.assert_array_equal(link.linear.b.array, np.arange(6))
    array = np.ones((3, 2, 4), "float32")
    assert chainer.links.Maxout(4, 3, 2, initialW=array).linear.W.shape == (6, 4)


@pytest.mark.parametrize("dense_dtype", ["float16", "float32"])
def test_sparse_matmul_of_float16(dense_dtype):
    """Multiplied in float32, rounded once to the dtype that the operands promote to."""
    pytest.importorskip("scipy", reason="SciPy is not installed")
    rs = np.random.RandomState(0)
    dense_a = np.where(rs.rand(5, 6) < 0.5, rs.randn(5, 6), 0).astype("float16")
    b = rs.randn(6, 3).astype(dense_dtype)
    sparse = chainer.utils.to_coo(dense_a, requires_grad=True)
    y = F.sparse_matmul(sparse, b)
    assert y.dtype == dense_dtype
    exact = dense_a.astype("float64") @ b.astype("float64")
    np.testing.assert_allclose(y.array, exact, rtol=np.finfo(dense_dtype).eps, atol=6 * 2.0**-22)
    F.sum(y).backward()
    assert sparse.data.grad.dtype == np.float16


def test_rebound_function_sees_the_overlay_and_its_module_does_not():
    y = rebound(F.resize_images, numpy=Overlay(np, pi=3))
    assert y.__globals__["numpy"].pi == 3
    assert y.__globals__["numpy"].ndarray is np.ndarray
    assert F.resize_images.__globals__["numpy"] is np
    assert y.__kwdefaults__ == F.resize_images.__kwdefaults__
    assert y.__doc__ == F.resize_images.__doc__


def test_debug_print_calls_the_cpu_as_ever():
    assert "\n- device: CPU\n" in chainer.Variable(np.zeros(2, "float32")).debug_print()
