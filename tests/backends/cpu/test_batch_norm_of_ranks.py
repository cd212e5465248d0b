"""Batch normalization of the batches of several processes: NumPy, the native library, CUDA kernels on the host."""

import numpy as np
import pytest
from hypothesis import given, settings

from mixprec.backends.geometry import BatchNorm
from tests.backends.batches_of_ranks import CASES, check, split
from tests.backends.primitive_cases import FLOAT32, STORAGE, arrays, exact
from tests.cases import tries
from tests.stand_ins import rank_threads


def here(value):
    return value


@settings(max_examples=tries(200))
@given(**CASES)
def test_forward_and_backward(anywhere, **case):
    check(anywhere, here, here, **case)


@settings(max_examples=tries(40))
@given(**CASES)
def test_rows_with_factors(anywhere, **case):
    check(anywhere, here, here, **case | {"with_add": True, "with_factors": True})


@pytest.mark.parametrize("dtype", STORAGE)
def test_a_channel_of_constants_has_no_variance(anywhere, dtype):
    """A difference of sums of squares would leave one."""
    x = np.full((6, 3), 12345.678, np.float32).astype(dtype)
    parameters = np.ones(3, np.float32), np.zeros(3, np.float32)

    def normalized(rank, ranks):
        return anywhere.batch_norm(split(x, (1, 2, 3))[rank], *parameters, None, BatchNorm(), ranks=ranks)

    for y, saved in rank_threads.run(3, normalized):
        np.testing.assert_allclose(saved.invstd, 1 / np.sqrt(2e-5), rtol=1e-6)
        assert not y.astype(np.float32).any()


def test_variance_where_the_mean_is_far_from_zero(primitives):
    """To the last bits of float32, where a difference of sums in float32 would have none that is right."""
    x = arrays(np.random.default_rng(0), (600, 5), FLOAT32, 1, 1e4)

    def normalized(rank, ranks):
        part = split(x, (100, 500))[rank]
        return primitives.batch_norm(part, *np.ones((2, 5), np.float32), None, BatchNorm(eps=0.0), ranks=ranks)[1]

    for saved in rank_threads.run(2, normalized):
        np.testing.assert_allclose(saved.invstd, 1 / exact(x).std(0), rtol=1e-6)
        assert saved.count == 600
