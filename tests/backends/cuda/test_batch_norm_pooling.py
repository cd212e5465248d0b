"""Batch normalization, ReLU and max pooling in one by own kernels on the host: beside those one by one, and FP64."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cuda.batch_norm_pooling import _reciprocal
from mixprec.backends.geometry import BatchNorm, Normalized, Pooling
from mixprec.backends.primitives import Primitives
from tests.backends.batch_norm_checks import check_gradients
from tests.backends.primitive_cases import (
    FLOAT32,
    STORAGE,
    arrays,
    batch_norm_output,
    channel_parameters,
    exact,
    given_moments,
    seeds,
    storage_dtypes,
)
from tests.cases import tries
from tests.stand_ins.cuda_on_host import receive, send
from tests.stand_ins.cuda_sides import both_sides
from tests.stand_ins.kernels_on_host import assert_same, odd_values

RESNET = Pooling((3, 3), (2, 2), (1, 1))
RELU = BatchNorm(relu=True)


@pytest.fixture(scope="module")
def cuda(host):
    return host.cuda


@st.composite
def poolings(draw):
    """A pooling that has kernels, and a shape of images."""
    pad, cover_all = draw(st.tuples(*2 * [st.integers(0, 1)])), draw(st.booleans())
    size = draw(st.tuples(*(st.integers(3 - 2 * each, 9) for each in pad)))
    shape = draw(st.integers(1, 3)), *size, draw(st.sampled_from([1, 3, 8, 24]))
    return Pooling((3, 3), (2, 2), pad, cover_all), shape


def sums_of(mean, invstd, count):
    """Sums that a convolution could have taken."""
    return np.stack([mean * count, (mean**2 + 1 / invstd**2) * count]).astype(np.float32)


# --- forward


@settings(max_examples=tries(60))
@given(
    case=poolings(),
    dtype=storage_dtypes,
    odd=st.booleans(),
    ties=st.booleans(),
    with_sums=st.booleans(),
    misaligned=st.booleans(),
    seed=seeds,
)
def test_forward_has_the_bits_of_one_after_the_other(cuda, case, dtype, odd, ties, with_sums, misaligned, seed):
    """With ties that come from rounding only, and NaN and inf, which sums as of a convolution do not know of."""
    pooling, shape = case
    rng = np.random.default_rng(seed)
    x = odd_values(rng, shape, dtype) if odd else arrays(rng, shape, dtype)
    gamma, beta = channel_parameters(rng, shape[-1])
    if ties:
        gamma, beta = gamma / 256, beta + 1
    sums = sums_of(*(np.exp(arrays(rng, (2, shape[-1]), FLOAT32))), np.prod(shape[:3])) if with_sums else None

    def one():
        running = send(tuple(np.ones((2, shape[-1]), np.float32)))
        return Normalized(send(x, misaligned), *send((gamma, beta)), running, RELU, send(sums))

    found, expected = one(), one()
    with cuda.counting() as launched:
        y, where, saved = cuda.batch_norm_max_pool(found, pooling)
    assert (launched.kernels, launched.plans) == (1 if with_sums else 2, [])
    expected_y, expected_where, expected_saved = receive(Primitives.batch_norm_max_pool(cuda, expected, pooling))
    assert_same(y, expected_y)
    assert_same(where, expected_where)
    for one_of, right in zip((*saved[:2], *found.running), (*expected_saved[:2], *expected.running), strict=True):
        assert_same(one_of, np.asarray(right))


@both_sides
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_odd_values_by_own_kernels(side, dtype):
    """A GPU has its own way to round NaN."""
    rng = np.random.default_rng(0)
    x, sums = odd_values(rng, (2, 9, 7, 16), dtype), sums_of(*np.exp(arrays(rng, (2, 16), FLOAT32)), 2 * 9 * 7)
    one = Normalized(*side.send((x, *channel_parameters(rng, 16))), None, RELU, side.send(sums))
    found = side.receive(side.cuda.batch_norm_max_pool(one, RESNET)[:2])
    expected = side.receive(Primitives.batch_norm_max_pool(side.cuda, one, RESNET)[:2])
    for array, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(exact(array), exact(right))


def test_ties_are_those_of_rounded_values(cuda):
    """The last of nine is the largest in float32, and the same as the first in float16."""
    x = np.arange(9, dtype=np.float16).reshape(1, 3, 3, 1)
    parameters = send((np.full(1, 1e-4, np.float32), np.ones(1, np.float32)))
    y, where, _ = cuda.batch_norm_max_pool(Normalized(send(x), *parameters, None, RELU), Pooling((3, 3), (2, 2)))
    assert receive(y) == 1
    assert receive(where) == 0


# --- backward


def gradients(cuda, case, dtype, seed, with_plus, misaligned=False, whole=False):
    """Returns whether all signs in front of the ReLU are certain, gradients as arrays of NumPy, and the rest."""
    pooling, shape = case
    rng = np.random.default_rng(seed)
    x = arrays(rng, shape, dtype, 2, 1)
    gamma, beta = channel_parameters(rng, shape[-1])
    one = Normalized(send(x, misaligned), *send((gamma, beta)), None, RELU)
    y, where, saved = cuda.batch_norm_max_pool(one, pooling)
    dy, plus = (rng.integers(-3, 4, (2, *y.shape)) if whole else arrays(rng, (2, *y.shape), FLOAT32)).astype(dtype)
    with cuda.counting() as launched:
        found = cuda.batch_norm_max_pool_backward(
            send(dy, misaligned), where, one, saved, pooling, plus=send(plus, misaligned) if with_plus else None
        )
    assert (launched.kernels, launched.plans) == (2, [])
    total = PRIMITIVES.add(dy, plus) if with_plus else dy
    g = PRIMITIVES.max_pool_backward(total, receive(where), pooling, shape)
    mean, invstd = receive(saved[:2])
    before, bound = batch_norm_output(x, gamma, beta, given_moments(mean, invstd))
    is_certain = not ((np.abs(before) <= bound) & (exact(g) != 0)).any()
    return is_certain, receive(found), g, before, x, gamma, mean, invstd


@settings(max_examples=tries(60))
@given(case=poolings(), dtype=storage_dtypes, with_plus=st.booleans(), misaligned=st.booleans(), seed=seeds)
def test_gradients_are_within_the_bounds_of_fp64(cuda, case, dtype, with_plus, misaligned, seed):
    is_certain, found, *rest = gradients(cuda, case, dtype, seed, with_plus, misaligned)
    assume(is_certain)
    check_gradients((*found, None), *rest, RELU, add=False)


@settings(max_examples=tries(40))
@given(case=poolings(), dtype=storage_dtypes, with_plus=st.booleans(), seed=seeds)
def test_no_gradient_is_missed_or_taken_twice(cuda, case, dtype, with_plus, seed):
    """Sums of small whole numbers are exact in any order."""
    is_certain, (_, _, dbeta), g, before, *_ = gradients(cuda, case, dtype, seed, with_plus, whole=True)
    assume(is_certain)
    np.testing.assert_array_equal(dbeta, (exact(g) * (before > 0)).sum((0, 1, 2)))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_many_blocks(cuda, dtype):
    """Beside and below each other, and several rows of each thread."""
    for shape in ((2, 23, 40, 264), (2, 50, 41, 40)):
        is_certain, found, *rest = gradients(cuda, (RESNET, shape), dtype, 0, True)
        assert is_certain
        assert min(cuda.launcher.launches[-2:]) > 8
        check_gradients((*found, None), *rest, RELU, add=False)


# --- rules


COMPOSED = [
    (RESNET, BatchNorm()),
    (Pooling((3, 3), (2, 2), (1, 2)), RELU),
    (Pooling((3, 3), (2, 1), (1, 1)), RELU),
    (Pooling((2, 2), (2, 2)), RELU),
]


@pytest.mark.parametrize(("pooling", "attributes"), COMPOSED)
def test_everything_else_is_composed(cuda, pooling, attributes):
    rng = np.random.default_rng(0)
    x = arrays(rng, (2, 5, 6, 8), np.float16)
    one = Normalized(*send((x, *channel_parameters(rng, 8))), None, attributes)
    with cuda.counting() as found:
        y, where, saved = cuda.batch_norm_max_pool(one, pooling)
    assert found.kernels == 3
    with cuda.counting() as found:
        cuda.batch_norm_max_pool_backward(y, where, one, saved, pooling, plus=y)
    assert found.kernels == 4


@given(number=st.integers(1, 2**31 - 1), row=st.integers(0, 2**31 - 1))
def test_divisions(number, row):
    multiplier, shift = _reciprocal(number)
    assert multiplier < 2**32
    for each in (row, row - row % number, row - row % number - 1):
        assert each < 0 or each * multiplier >> shift == each // number
