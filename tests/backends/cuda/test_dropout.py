"""The dropout kernel, run on the host, beside NumPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import storage_dtypes
from tests.cases import tries
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, assert_same, odd_values, send

words = st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


@settings(max_examples=tries(60))
@given(
    size=st.integers(0, 1100),
    dtype=storage_dtypes,
    ratio=st.sampled_from([0.0, 0.1, 0.5, 0.9]) | st.floats(0, 0.999),
    key=st.tuples(words, words),
    misaligned=st.booleans(),
)
def test_dropout(device, size, dtype, ratio, key, misaligned):
    x = odd_values(np.random.default_rng(size), (size,), dtype)
    key = np.array(key, np.uint64)
    found = device.dropout(send(x, misaligned), ratio, send(key))
    assert_same(found, PRIMITIVES.dropout(x, ratio, key))
    state, expected = send(key), key.copy()
    for _ in range(2):
        ours = device.dropout_next(send(x, misaligned), ratio, state)
        with np.errstate(over="ignore"):  # after the last of all sequences
            right = PRIMITIVES.dropout_next(x, ratio, expected)
        for one, other in zip((*ours, state), (*right, expected), strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_keys(device, seed):
    """Each is a copy of the state, which moves on."""
    state, expected = device.new_random_state(seed), PRIMITIVES.new_random_state(seed)
    assert_same(state, expected)
    for _ in range(3):
        assert_same(device.dropout_key(state), PRIMITIVES.dropout_key(expected))
        assert_same(state, expected)


def test_each_is_one_launch(device):
    state = device.new_random_state(1)
    key = device.dropout_key(state)
    assert device.launches_of("dropout_key", state) == 1
    assert device.launches_of("dropout", send(np.ones((3, 1000), np.float16)), 0.5, key) == 1
    assert device.launches_of("dropout", send(np.ones(0, np.float16)), 0.5, key) == 0
    assert device.launches_of("dropout_next", send(np.ones((3, 1000), np.float16)), 0.5, state) == 1
    assert device.launches_of("row_factors", 256, 0.5, key) == 1
    assert device.launches_of("scale_rows", send(np.ones((3, 1000), np.float16)), send(np.ones(3, np.float32))) == 1
    assert device.launches_of("scale_rows", send(np.ones((0, 5), np.float16)), send(np.ones(0, np.float32))) == 0


@settings(max_examples=tries(30))
@given(count=st.integers(1, 1100), ratio=st.floats(0, 0.999), key=st.tuples(words, words))
def test_factors_of_rows(device, count, ratio, key):
    key = np.array(key, np.uint64)
    assert_same(device.row_factors(count, ratio, send(key)), PRIMITIVES.row_factors(count, ratio, key))


@settings(max_examples=tries(60))
@given(
    shape=st.sampled_from([(1, 1), (7, 3), (5, 8), (3, 16, 33), (2, 5, 4, 8), (300, 24)]),
    dtype=storage_dtypes,
    misaligned=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_times_factors(device, shape, dtype, misaligned, seed):
    rng = np.random.default_rng(seed)
    x, factors = odd_values(rng, shape, dtype), rng.choice([0, 1.25], shape[0]).astype(np.float32)
    assert_same(device.scale_rows(send(x, misaligned), send(factors)), PRIMITIVES.scale_rows(x, factors))
