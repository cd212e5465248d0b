"""Batch normalization with a factor for each image, on any device, beside FP64."""

import numpy as np
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.geometry import BatchNorm
from tests.backends.primitive_cases import (
    EPS32,
    FLOAT32,
    arrays,
    assert_close,
    batch_norm_gradients,
    batch_norm_moments,
    batch_norm_output,
    batch_norm_shapes,
    channel_parameters,
    exact,
    given_moments,
    seeds,
    storage_dtypes,
)

CASES = {
    "shape": batch_norm_shapes(),
    "dtype": storage_dtypes,
    "relu": st.booleans(),
    "with_plus": st.booleans(),
    "seed": seeds,
}


def check(primitives, send, receive, shape, dtype, relu, with_plus, seed):
    """Checks a forward and a backward pass.

    Args:
        primitives: of the device.
        send: brings arrays and tuples of them to it.
        receive: brings them back.
        shape: (N, ..., C).
        dtype: storage dtype.
        relu: whether there is one.
        with_plus: whether the gradient is the sum of two arrays.
        seed: of random numbers.
    """
    rng, attributes = np.random.default_rng(seed), BatchNorm(relu=relu)
    x, add = arrays(rng, shape, dtype, 2.0, 1.0), arrays(rng, shape, dtype)
    parameters = channel_parameters(rng, shape[-1])
    factors = rng.choice([0, 1.25, 2.5], shape[0]).astype(np.float32)
    of_images = exact(factors).reshape(-1, *[1] * (len(shape) - 1))
    sent = send(x), *send(parameters)
    y, saved = primitives.batch_norm(*sent, None, attributes, add=send(add), factors=send(factors))

    def output(moments):
        normalized, bound = batch_norm_output(x, *parameters, moments)
        total = of_images * normalized + exact(add)
        terms = np.abs(of_images * normalized) + np.abs(exact(add))
        return total, 2 * of_images * bound + 4 * EPS32 * terms

    moments = batch_norm_moments(x, attributes.eps, merged=True)
    assert_close(receive(saved.mean), moments.mean, FLOAT32, moments.mean_bound)
    before, bound = output(moments)
    assert_close(receive(y), np.maximum(before, 0) if relu else before, dtype, bound)

    mean, invstd = receive(saved.mean), receive(saved.invstd)
    before, bound = output(given_moments(mean, invstd))
    doubtful = relu & (np.abs(before) <= bound)  # there the ReLU is open or closed by a rounding
    dy, plus = (np.where(doubtful, 0, each).astype(dtype) for each in arrays(rng, (2, *shape), dtype))
    dx, dgamma, dbeta, dadd = primitives.batch_norm_backward(
        send(dy), *sent, saved, attributes, add=True, plus=send(plus) if with_plus else None, factors=send(factors)
    )
    g = exact(PRIMITIVES.add(dy, plus) if with_plus else dy) * ((before > 0) | (not relu))
    np.testing.assert_array_equal(exact(receive(dadd)), g)  # of the sum, so without factors
    expected = batch_norm_gradients(of_images * g, x, parameters[0], mean, invstd)
    for found, name in ((dx, "dx"), (dgamma, "dgamma"), (dbeta, "dbeta")):
        right, bound = expected[name]
        assert_close(receive(found), right, dtype if name == "dx" else FLOAT32, 2 * bound)
