"""Batch normalization on NumPy beside FP64: training, inference, statistics of a convolution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu.blocks import BLOCK
from mixprec.backends.geometry import BatchNorm
from tests.backends import batch_norm_checks
from tests.backends.batch_norm_checks import check_gradients, opened, without_doubt
from tests.backends.primitive_cases import (
    FLOAT16,
    FLOAT32,
    STORAGE,
    arrays,
    assert_close,
    batch_norm_moments,
    batch_norm_output,
    batch_norm_shapes,
    batch_norms,
    channel_parameters,
    exact,
    given_moments,
    seeds,
    storage_dtypes,
)
from tests.cases import tries

EXAMPLES = settings(max_examples=tries(60))


def here(value):
    return value


# --- the reference


# --- training


@given(
    shape=batch_norm_shapes(),
    dtype=storage_dtypes,
    attributes=batch_norms,
    with_add=st.booleans(),
    spread=st.sampled_from([1.0, 1e-2, 30.0]),
    mean=st.sampled_from([0.0, 3.0]),
    seed=seeds,
)
@settings(max_examples=tries(200))
def test_forward_and_backward(by_any_engine, shape, dtype, attributes, with_add, spread, mean, seed):
    options = {"spread": spread, "mean": mean, "seed": seed}
    batch_norm_checks.check(by_any_engine, here, here, shape, dtype, attributes, with_add, **options)


@given(shape=batch_norm_shapes(), dtype=storage_dtypes, with_add=st.booleans(), seed=seeds)
@settings(max_examples=tries(80))
def test_relu_is_open_in_the_backward_pass_where_it_was_in_the_forward_pass(anywhere, shape, dtype, with_add, seed):
    """Also at 0, where many of these sums are: all numbers are small integers."""
    rng = np.random.default_rng(seed)
    x, add = rng.integers(-1, 2, (2, *shape)).astype(dtype)
    gamma, beta = np.ones(shape[-1], np.float32), rng.integers(-1, 2, shape[-1]).astype(np.float32)
    mean, variance = rng.integers(-1, 2, shape[-1]).astype(np.float32), np.ones(shape[-1], np.float32)
    attributes = BatchNorm(eps=0.0, relu=True)
    dy = np.ones(shape, dtype)
    count = x.size // shape[-1]
    sums = np.stack([mean * count, (variance + mean**2) * count])

    y, saved = anywhere.batch_norm(x, gamma, beta, None, attributes, add=add if with_add else None, sums=sums)
    _, _, dbeta, dadd = anywhere.batch_norm_backward(dy, x, gamma, beta, saved, attributes, add=with_add)
    np.testing.assert_array_equal(dbeta, (y > 0).sum(tuple(range(x.ndim - 1))))
    if with_add:
        np.testing.assert_array_equal(dadd, (y > 0).astype(dtype))


def test_relu_is_open_where_its_output_is_too_small_for_the_storage_dtype(anywhere):
    x = np.array([[0], [2]], np.float16)
    gamma, beta = np.array([2.0**-30], np.float32), np.zeros(1, np.float32)
    attributes = BatchNorm(eps=0.0, relu=True)
    for add in (None, np.zeros_like(x)):
        y, saved = anywhere.batch_norm(x, gamma, beta, None, attributes, add=add)
        assert not y.any()
        _, _, dbeta, _ = anywhere.batch_norm_backward(
            np.array([[1], [2]], np.float16), x, gamma, beta, saved, attributes, add=add is not None
        )
        assert dbeta == 2


@pytest.mark.parametrize("dtype", STORAGE)
def test_many_blocks_and_a_part_of_one(primitives, dtype):
    """As the blocks do not begin where channels do, if somebody forgets that."""
    batch_norm_checks.check(primitives, here, here, (3 * BLOCK // 7 + 5, 7), dtype, BatchNorm(relu=True), True)


def test_more_channels_than_a_block_has_elements(primitives):
    rng = np.random.default_rng(0)
    x = arrays(rng, (3, BLOCK + 3), np.float16)
    gamma, beta = channel_parameters(rng, BLOCK + 3)
    y, _ = primitives.batch_norm(x, gamma, beta, None, BatchNorm())
    before, bound = batch_norm_output(x, gamma, beta, batch_norm_moments(x, 2e-5))
    assert_close(y, before, FLOAT16, bound)


@given(shape=batch_norm_shapes(), dtype=storage_dtypes, attributes=batch_norms, seed=seeds)
@EXAMPLES
def test_statistics_of_a_convolution(anywhere, shape, dtype, attributes, seed):
    rng = np.random.default_rng(seed)
    x = arrays(rng, shape, dtype)
    gamma, beta = channel_parameters(rng, shape[-1])
    flat = exact(x).reshape(-1, shape[-1])
    sums = np.stack([flat.sum(0), (flat**2).sum(0)]).astype(np.float32)

    y, saved = anywhere.batch_norm(x, gamma, beta, None, attributes, sums=sums)

    moments = batch_norm_moments(x, attributes.eps)
    assert_close(saved.mean, moments.mean, FLOAT32, moments.mean_bound)
    variance = 1 / exact(saved.invstd) ** 2 - attributes.eps
    np.testing.assert_allclose(variance, moments.variance, atol=8 * 2.0**-24 * (flat**2).mean(0).max() + 1e-7)
    before, bound = batch_norm_output(x, gamma, beta, given_moments(saved.mean, saved.invstd))
    assert_close(y, opened(before, attributes.relu), dtype, bound)


# --- inference


@given(shape=batch_norm_shapes(), dtype=storage_dtypes, attributes=batch_norms, with_add=st.booleans(), seed=seeds)
@settings(max_examples=tries(120))
def test_inference(anywhere, shape, dtype, attributes, with_add, seed):
    rng = np.random.default_rng(seed)
    x = arrays(rng, shape, dtype)
    add = arrays(rng, shape, dtype) if with_add else None
    gamma, beta = channel_parameters(rng, shape[-1])
    mean, variance = arrays(rng, shape[-1], np.float32), np.exp(arrays(rng, shape[-1], np.float32))
    invstd = 1 / np.sqrt(exact(variance) + attributes.eps)
    before, bound = batch_norm_output(x, gamma, beta, given_moments(mean, invstd), add)

    y = anywhere.batch_norm_inference(x, gamma, beta, mean, variance, attributes, add=add)
    assert_close(y, opened(before, attributes.relu), dtype, bound)

    dy = without_doubt(arrays(rng, shape, dtype), before, bound)
    dy[(before > 0) & (exact(y) == 0)] = 0  # open, but too small for y
    found = anywhere.batch_norm_inference_backward(
        dy, x, gamma, beta, mean, variance, attributes, y=y if with_add else None
    )
    check_gradients(found, dy, before, x, gamma, mean, invstd, attributes, with_add, constant=True)


def test_inputs_are_left_as_they_are(anywhere):
    rng = np.random.default_rng(0)
    for dtype in STORAGE:
        inputs = [arrays(rng, (50, 3), dtype) for _ in range(3)]
        before = [array.copy() for array in inputs]
        x, add, dy = inputs
        gamma, beta = channel_parameters(rng, 3)
        for attributes in (BatchNorm(), BatchNorm(relu=True)):
            for addend in (None, add):
                y, saved = anywhere.batch_norm(x, gamma, beta, None, attributes, add=addend)
                found = anywhere.batch_norm_backward(dy, x, gamma, beta, saved, attributes, add=addend is not None)
                assert not any(
                    np.shares_memory(found[0], array) for array in (x, add, dy, y, found[3]) if array is not None
                )
        for array, old in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(exact(array), exact(old))


@given(shape=batch_norm_shapes(), dtype=storage_dtypes, attributes=batch_norms, with_plus=st.booleans(), seed=seeds)
@EXAMPLES
def test_images_with_factors(anywhere, shape, dtype, attributes, with_plus, seed):
    options = {"with_factors": True, "with_plus": with_plus, "seed": seed}
    batch_norm_checks.check(anywhere, here, here, shape, dtype, attributes, True, **options)


def test_a_factor_of_one_changes_no_bit(primitives):
    rng = np.random.default_rng(0)
    x, add, dy = arrays(rng, (3, 4, 5, 5, 24), FLOAT16)
    parameters, attributes, found = channel_parameters(rng, 24), BatchNorm(relu=True), []
    for factors in (None, np.ones(4, np.float32)):
        y, saved = primitives.batch_norm(x, *parameters, None, attributes, add=add, factors=factors)
        gradients = primitives.batch_norm_backward(
            dy, x, *parameters, saved, attributes, add=True, plus=add, factors=factors
        )
        found.append([y, gradients[3]])
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, expected)
