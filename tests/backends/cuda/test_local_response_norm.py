"""The kernels of local response normalization, run on the host, beside NumPy's."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.geometry import LocalResponseNorm
from tests.backends.primitive_cases import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    arrays,
    assert_close,
    channel_counts,
    local_response_norm,
    seeds,
    storage_dtypes,
)
from tests.cases import tries
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, assert_same, odd_values, receive, send

POWERS = (0.75, 0.6)  # by roots, and by powf


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


def both(primitives, x, dy, attributes):
    return primitives.local_response_norm(x, attributes), primitives.local_response_norm_backward(dy, x, attributes)


def check(device, x, dy, attributes, misaligned=False):
    """Right with any power, and with that by roots the same as on NumPy, bit for bit."""
    sent = send(x, misaligned), send(dy, misaligned)
    found = both(device, *sent, attributes)
    for array, (expected, bound) in zip(found, local_response_norm(x, dy, attributes), strict=True):
        assert_close(receive(array), expected, x.dtype, bound)
    by_roots = dataclasses.replace(attributes, beta=0.75)
    for array, expected in zip(both(device, *sent, by_roots), both(PRIMITIVES, x, dy, by_roots), strict=True):
        assert_same(array, expected)


@settings(max_examples=tries(30))
@given(channels=channel_counts, n=st.integers(1, 12), dtype=storage_dtypes, seed=seeds, misaligned=st.booleans())
def test_odd_values(device, channels, n, dtype, seed, misaligned):
    rng = np.random.default_rng(seed)
    x, dy = (odd_values(rng, (7, channels), dtype) for _ in range(2))
    attributes = LocalResponseNorm(n, 0.5, 0.1)
    sent = send(x, misaligned), send(dy, misaligned)
    for found, expected in zip(both(device, *sent, attributes), both(PRIMITIVES, x, dy, attributes), strict=True):
        assert_same(found, expected)


WINDOWS = [
    ((2, 1040), 5, 0.75, FLOAT16),
    ((3, 1040), 40, 0.6, FLOAT32),
    ((3, 131), 5, 0.6, BFLOAT16),
    ((3, 131), 260, 0.75, FLOAT32),
    ((40, 24), 17, 0.6, FLOAT16),
    pytest.param((3, 1040), 1200, 0.75, BFLOAT16, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("shape", "n", "beta", "dtype"), WINDOWS)
def test_rows_and_windows_of_many_groups_and_blocks(device, shape, n, beta, dtype):
    """A thread needs what other blocks have, next to the edge and far from it."""
    x, dy = arrays(np.random.default_rng(0), (2, *shape), dtype)
    check(device, x, dy, LocalResponseNorm(n, 1.0, 0.1, beta))


@pytest.mark.parametrize("shape", [(3, 6, 6, 64), (5, 3)])
@pytest.mark.parametrize("beta", POWERS)
def test_each_is_one_launch(device, shape, beta):
    x, attributes = send(np.ones(shape, np.float16)), LocalResponseNorm(beta=beta)
    assert device.launches_of("local_response_norm", x, attributes) == 1
    assert device.launches_of("local_response_norm_backward", x, x, attributes) == 1


@pytest.mark.parametrize("shape", [(0, 6, 6, 16), (3, 0)])
def test_nothing(device, shape):
    x = send(np.ones(shape, np.float16))
    assert [array.shape for array in both(device, x, x, LocalResponseNorm())] == [shape, shape]
    assert device.launches_of("local_response_norm", x, LocalResponseNorm()) == 0
