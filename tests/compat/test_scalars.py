"""NumPy scalars as hyperparameters and constants do not widen what Chainer computes."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from tests.cases import in_turn


@pytest.mark.parametrize("value", [np.float64(0.25), np.float32(0.25), np.float16(0.25), 0.25])
def test_hyperparameters_are_python_numbers(value):
    optimizer = chainer.optimizers.MomentumSGD(lr=value)
    assert type(optimizer.lr) is float
    optimizer.lr = value
    optimizer.hyperparam.momentum = value
    assert type(optimizer.hyperparam.lr) is type(optimizer.momentum) is float
    assert optimizer.lr == 0.25


def test_hyperparameters_of_other_types_are_kept():
    hyperparameter = chainer.optimizer.Hyperparameter()
    array = np.zeros(())
    hyperparameter.lr, hyperparameter.flag, hyperparameter.none = array, True, None
    assert hyperparameter.lr is array
    assert hyperparameter.flag is True
    assert hyperparameter.none is None


def test_update_with_a_numpy_learning_rate_is_bitwise_the_update_with_a_python_one():
    """A float32 update: in float64 the result would be rounded only once."""

    def train(lr):
        link = chainer.links.Linear(50, 50, initialW=chainer.initializers.Normal(rng=np.random.RandomState(0)))
        optimizer = chainer.optimizers.MomentumSGD(lr=lr).setup(link)
        link.W.grad = np.random.RandomState(1).randn(50, 50).astype("float32")
        link.b.grad = np.ones(50, "float32")
        for _ in range(3):
            optimizer.update()
        return link.W.array

    np.testing.assert_array_equal(train(np.float64(0.1)), train(0.1))


def rand(dtype, *shape):
    return chainer.Variable(np.random.RandomState(0).uniform(0.5, 1.5, shape).astype(dtype))


def running(dtype):
    return {"running_mean": np.zeros(4, dtype), "running_var": np.ones(4, dtype)}


def batch_renormalization(x, d, f):
    return F.batch_renormalization(x, rand(d, 4), rand(d, 4), f(2.0), f(2.0), f(1e-3), decay=f(0.9), **running(d))


NORMALIZATIONS = {
    "batch_normalization": lambda x, d, f: F.batch_normalization(
        x, rand(d, 4), rand(d, 4), eps=f(1e-3), decay=f(0.9), **running(d)
    ),
    "fixed_batch_normalization": lambda x, d, f: F.fixed_batch_normalization(
        x, rand(d, 4), rand(d, 4), rand(d, 4), rand(d, 4), eps=f(1e-3)
    ),
    "batch_renormalization": batch_renormalization,
    "layer_normalization": lambda x, d, f: F.layer_normalization(x, rand(d, 4), rand(d, 4), eps=f(1e-3)),
    "local_response_normalization": lambda x, d, f: F.local_response_normalization(x, 5, f(2.0), f(1e-2), f(0.75)),
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(NORMALIZATIONS, ["float16", "float32"]))
def test_constants_given_as_numpy_scalars_do_not_widen_a_normalization(name, dtype):
    """Chainer alone raises a type error, forward or backward."""
    results = []
    for number in (float, np.float64):
        x = rand(dtype, 8, 4)
        y = NORMALIZATIONS[name](x, dtype, number)
        y.grad = np.random.RandomState(1).randn(8, 4).astype(dtype)
        y.backward()
        assert y.dtype == x.grad.dtype == dtype
        results.append((y.array, x.grad))
    for with_float, with_numpy in zip(*results, strict=True):
        np.testing.assert_array_equal(with_numpy, with_float)


ROI_POOLINGS = {
    "roi_pooling_2d": lambda x, corners, scale: F.roi_pooling_2d(
        x, np.concatenate([np.zeros((1, 1), corners.dtype), corners], 1), 4, 4, scale
    ),
    "roi_max_pooling_2d": lambda x, corners, scale: F.roi_max_pooling_2d(x, corners, np.zeros(1, "int32"), 4, scale),
    "roi_average_pooling_2d": lambda x, corners, scale: F.roi_average_pooling_2d(
        x, corners, np.zeros(1, "int32"), 4, scale
    ),
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(ROI_POOLINGS, ["float16", "float32"]))
def test_roi_pooling_pools_the_bins_of_float64_in_every_dtype(name, dtype):
    """45 * 0.7 rounds to 31 in float64, as NumPy 1 computed it, and to 32 in float16 and float32."""
    x = np.random.RandomState(0).randint(0, 1000, (1, 2, 40, 40)).astype("float64")
    corners = np.array([[0.0, 0.0, 45.0, 45.0]])
    results = []
    for d in ("float64", dtype):
        variable = chainer.Variable(x.astype(d))
        y = ROI_POOLINGS[name](variable, corners.astype(d), 0.7)
        y.grad = np.ones(y.shape, d)
        y.backward()
        assert y.dtype == variable.grad.dtype == d
        results.append((y.array, variable.grad))
    for actual, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=np.finfo(dtype).eps)


@pytest.mark.parametrize("align", [F.roi_average_align_2d, F.roi_max_align_2d])
def test_roi_align_samples_the_grid_of_float64(align):
    """A bin of 100 * 0.3 / 2 pixels is sampled 15 times each way; in float32 it is a little more, thus 16 times."""
    x = np.random.RandomState(0).randn(1, 2, 32, 32).astype("float32")
    corners = np.array([[0, 0, 100, 100]], "float32")
    results = []
    for sampling_ratio in (None, 15):
        variable = chainer.Variable(x)
        y = align(variable, corners, np.zeros(1, "int32"), 2, 0.3, sampling_ratio)
        F.sum(y).backward()
        results.append((y.array, variable.grad))
    for actual, expected in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_roi_function_keeps_the_scale_it_was_given():
    """GPU kernels get it as a Python float, of the kernel's own dtype."""
    from chainer.functions.pooling.roi_average_align_2d import ROIAverageAlign2D

    function = ROIAverageAlign2D(2, 0.5)
    x, rois = np.ones((1, 1, 8, 8), "float32"), np.array([[1, 1, 9, 9]], "float32")
    function(x, rois, np.zeros(1, "int32"))
    assert type(function.spatial_scale) is float
