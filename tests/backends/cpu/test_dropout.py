"""Dropout on NumPy: its random numbers, what stays, what is repeated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cpu.dropout import philox
from tests.backends.primitive_cases import EPS32, STORAGE, arrays, assert_close, exact, seeds, storage_dtypes
from tests.cases import tries

words = st.integers(0, 2**32 - 1)


def philox_of_one(counter, key):
    """Philox4x32-10 as in the paper, for one counter, with Python's ints."""
    counter, key = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (high >> 32) ^ counter[1] ^ key[0],
            high & 0xFFFFFFFF,
            (low >> 32) ^ counter[3] ^ key[1],
            low & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def as_counters(*numbers):
    return [np.array([number], np.uint64) for number in numbers]


KNOWN = [
    ([0x00000000] * 6, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 6, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("words", "expected"), KNOWN)
def test_known_answers(words, expected):
    """From kat_vectors of Random123 1.14: a counter of four words and a key of two."""
    assert philox(as_counters(*words[:4]), words[4:]).tolist() == [expected]


@given(counter=st.tuples(words, words, words, words), key=st.tuples(words, words))
@settings(max_examples=tries(50))
def test_random_numbers(counter, key):
    assert philox(as_counters(*counter), key).tolist() == [philox_of_one(counter, key)]


@given(
    size=st.sampled_from([0, 1, 3, 4, 5, 1000, 20_001]),
    seed=st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 2**64 - 1),
    ratio=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    dtype=storage_dtypes,
)
@settings(max_examples=tries(40))
def test_which_elements_stay(size, seed, sequence, ratio, dtype):
    y = PRIMITIVES.dropout(np.ones(size, dtype), ratio, np.array([seed, sequence], np.uint64))
    assert y.dtype == dtype
    key = seed % 2**32, seed >> 32
    for i in {0, 1, 2, 3, size // 2, size - 1} & set(range(size)):
        counter = (i // 4 % 2**32, i // 4 >> 32, sequence % 2**32, sequence >> 32)
        assert (y[i] != 0) == (philox_of_one(counter, key)[i % 4] >= int(ratio * 2**32))


def test_a_number_that_is_the_ratio_stays():
    word = philox_of_one((1, 0, 7, 0), (5, 0))[2]
    x = np.ones(8, np.float32)
    for threshold, stays in ((word, True), (word + 1, False)):
        y = PRIMITIVES.dropout(x, threshold / 2**32, np.array([5, 7], np.uint64))
        assert (y[6] != 0) == stays


@given(dtype=storage_dtypes, ratio=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.75, 0.999]), seed=seeds)
@settings(max_examples=tries(40))
def test_what_stays_is_divided(dtype, ratio, seed):
    rng = np.random.default_rng(seed)
    x = arrays(rng, (3, 5, 7, 2), dtype)
    key = np.array([seed, 1], np.uint64)
    y = PRIMITIVES.dropout(x, ratio, key)
    kept = exact(PRIMITIVES.dropout(np.ones_like(x), ratio, key)) != 0
    expected = np.where(kept, exact(x) / (1 - ratio), 0)
    assert_close(y, expected, dtype, 4 * EPS32 * np.abs(expected))
    if ratio == 0:
        assert kept.all()
        np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("dtype", STORAGE)
def test_what_is_not_finite(dtype):
    x = np.full(1000, np.nan, dtype)
    x[::2] = np.inf
    y = exact(PRIMITIVES.dropout(x, 0.5, np.array([3, 0], np.uint64)))
    dropped = y == 0
    assert 400 < dropped.sum() < 600
    assert not np.isfinite(y[~dropped]).any()


def test_keys_count_up_and_repeat():
    state = PRIMITIVES.new_random_state(2**63 + 5)
    assert state.dtype == np.uint64
    keys = [PRIMITIVES.dropout_key(state) for _ in range(3)]
    assert [key.tolist() for key in keys] == [[2**63 + 5, number] for number in range(3)]
    assert state.tolist() == [2**63 + 5, 3]
    x = np.ones(1000, np.float16)
    first, second, again = (PRIMITIVES.dropout(x, 0.5, key) for key in (keys[0], keys[1], keys[0]))
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.75])
def test_factors_of_rows_are_the_dropout_of_ones(ratio):
    key = np.array([3, 4], np.uint64)
    factors = PRIMITIVES.row_factors(37, ratio, key)
    np.testing.assert_array_equal(factors, PRIMITIVES.dropout(np.ones(37, np.float32), ratio, key), strict=True)
    assert set(factors) <= {np.float32(0), np.float32(1) / np.float32(1 - ratio)}


@given(dtype=storage_dtypes, shape=st.sampled_from([(3,), (5, 7), (2, 4, 3, 8), (0, 4), (3, 0)]), seed=seeds)
@settings(max_examples=tries(30))
def test_rows_times_factors(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    x, factors = arrays(rng, shape, dtype), rng.choice([0, 1.25, 3], shape[0]).astype(np.float32)
    expected = exact(x) * factors.reshape(-1, *[1] * (len(shape) - 1))
    assert_close(PRIMITIVES.scale_rows(x, factors), expected, dtype, EPS32 * np.abs(expected))


@pytest.mark.parametrize("dtype", STORAGE)
def test_what_is_not_finite_stays_visible_in_a_dropped_row(dtype):
    """As 0 times it is NaN in PyTorch: the loss scale has to see it."""
    x = np.array([[np.inf, 1], [np.nan, 1]], dtype)
    y = exact(PRIMITIVES.scale_rows(x, np.zeros(2, np.float32)))
    assert np.isnan(y[:, 0]).all()
    assert (y[:, 1] == 0).all()
