"""Storage dtypes and layouts on NumPy: casts, NHWC and back."""

import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu.blocks import BLOCK, narrow, widen
from tests.backends import primitive_cases as cases
from tests.cases import tries

HALVES = {dtype: np.arange(1 << 16, dtype=np.uint16).view(dtype) for dtype in (cases.FLOAT16, cases.BFLOAT16)}


# --- dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_goes_to_float32_and_back(dtype):
    """In blocks in which all are finite, and in some in which not."""
    with np.errstate(invalid="ignore"):
        finite = HALVES[dtype][np.isfinite(HALVES[dtype])]
    for numbers in (HALVES[dtype], finite):
        wide = widen(numbers)
        assert wide.dtype == np.float32
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(wide, numbers.astype(np.float32))
        back = narrow(wide, dtype)
        assert back.dtype == dtype
        np.testing.assert_array_equal(back.astype(np.float32), wide)
        np.testing.assert_array_equal(np.signbit(back.astype(np.float32)), np.signbit(wide))


@given(
    shape=st.lists(st.integers(0, 12), max_size=4),
    source=cases.storage_dtypes,
    target=cases.storage_dtypes,
    spread=st.sampled_from([1e-9, 1e-6, 1.0, 1e6]),
    seed=cases.seeds,
)
@settings(max_examples=tries(100))
def test_cast(anywhere, shape, source, target, spread, seed):
    with np.errstate(over="ignore"):
        x = cases.arrays(np.random.default_rng(seed), tuple(shape), np.float32, spread).astype(source)
    y = anywhere.cast(x, target)
    cases.assert_close(y, cases.exact(x), target)
    assert (y is x) == (source == target)


@pytest.mark.parametrize("target", cases.STORAGE)
@pytest.mark.parametrize("source", cases.STORAGE)
def test_cast_of_blocks(anywhere, source, target):
    x = cases.arrays(np.random.default_rng(0), (3, BLOCK // 2 + 7), source)
    x[1, 5] = np.nan
    x[2, 7] = np.inf
    cases.assert_close(anywhere.cast(x, target), cases.exact(x), target)


def test_wide_arrays_are_not_copied():
    for dtype in (np.float32, np.float64):
        x = np.ones(3, dtype)
        assert widen(x) is x
    x = np.ones(3, np.float32)
    assert narrow(x, np.float32) is x


def test_threads_have_scratch_of_their_own():
    rng = np.random.default_rng(0)
    inputs = [cases.arrays(rng, 40 * BLOCK, np.float32) for _ in range(2)]
    expected = [x.astype(np.float16) for x in inputs]
    wrong = []

    def work(index):
        for _ in range(5):
            if not np.array_equal(narrow(inputs[index], cases.FLOAT16), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=[index]) for index in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


# --- layout


@given(
    position=cases.positions,
    channels=cases.channel_counts,
    more=st.sampled_from([None, -1, 0, 1, 5]),
    source=cases.storage_dtypes,
    target=cases.storage_dtypes,
    seed=cases.seeds,
)
@settings(max_examples=tries(80))
def test_layouts(anywhere, position, channels, more, source, target, seed):
    count, height, width = position
    x = cases.arrays(np.random.default_rng(seed), (count, channels, height, width), source)
    wanted = None if more is None else channels + more
    y = anywhere.to_nhwc(x, target, wanted)
    expected = cases.exact(anywhere.cast(x, target)).transpose(0, 2, 3, 1)
    assert y.dtype == target
    assert y.flags.c_contiguous
    assert y.shape == (*position, max(channels, wanted or 0))
    np.testing.assert_array_equal(cases.exact(y[..., :channels]), expected)
    assert not y[..., channels:].any()

    back = anywhere.to_nchw(y, source, channels)
    assert back.flags.c_contiguous
    assert back.dtype == source
    np.testing.assert_array_equal(cases.exact(back), cases.exact(anywhere.cast(anywhere.cast(x, target), source)))
    assert anywhere.to_nchw(y, source).shape == (count, y.shape[3], height, width)
    assert anywhere.to_nchw(y, source, channels + 100).shape == (count, y.shape[3], height, width)


def test_layouts_are_new_arrays(anywhere):
    """Also where both layouts are the same memory."""
    x = np.ones((2, 1, 1, 1), cases.FLOAT32)
    assert not np.shares_memory(anywhere.to_nhwc(x, cases.FLOAT32), x)
    assert not np.shares_memory(anywhere.to_nchw(x, cases.FLOAT32), x)
