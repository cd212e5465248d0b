"""Kernels of casts and layout, run on the host, beside NumPy's."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import BFLOAT16, FLOAT16, FLOAT32, STORAGE, arrays, seeds, storage_dtypes
from tests.cases import tries
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, assert_same, odd_values, send

shapes = st.tuples(
    st.integers(1, 3),
    st.integers(1, 11),
    st.integers(1, 11),
    st.sampled_from([1, 2, 3, 4, 6, 7, 8, 9, 16, 17, 24, 65, 72, 130]),
)
# Beside the number of channels there are: less, more, and round numbers.
wanted = st.sampled_from([None, 1, 3, 4, 8, 9, 16, 72, 80])


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


@pytest.mark.parametrize(("dtype", "other"), list(itertools.permutations(STORAGE, 2)), ids=str)
@pytest.mark.parametrize("size", [1, 7, 8, 1 << 17])
def test_cast(device, dtype, other, size):
    """Of every number of 16 bits; of many float32 between two of 16 bits, and just beside the middle of them."""
    rng = np.random.default_rng(0)
    x = odd_values(rng, (size,), dtype)
    if size > 8 and dtype != FLOAT32:
        x[: 1 << 16] = np.arange(1 << 16).astype(np.uint16).view(dtype)
    if size > 8 and dtype == FLOAT32:
        every = np.arange(1 << 16).astype(np.uint16).view(other).astype(np.float32).view(np.int32)
        half = 1 << (12 if other == FLOAT16 else 15)
        x = (every[:, None] + half * np.array([0, 1, 1, 1]) + np.array([0, -1, 0, 1])).astype(np.int32).view(np.float32)
    x = x.copy()
    for misaligned in (False, True):
        with np.errstate(invalid="ignore"):
            assert_same(device.cast(send(x, misaligned), other), PRIMITIVES.cast(x, other))


def test_a_cast_to_the_same_dtype_is_none(device):
    x = send(np.ones(3, np.float16))
    assert device.cast(x, np.float16) is x
    assert device.launches_of("cast", x, "float16") == 0


@settings(max_examples=tries(60))
@given(shapes, wanted, storage_dtypes, storage_dtypes, seeds, st.booleans())
@example((2, 5, 7, 3), 4, FLOAT32, FLOAT16, 0, False)  # what every network of images begins with
@example((2, 5, 7, 12), 16, FLOAT32, FLOAT16, 0, False)
def test_to_nhwc(device, shape, channels, dtype, other, seed, misaligned):
    images, height, width, own = shape
    x = arrays(np.random.default_rng(seed), (images, own, height, width), dtype)
    found = device.to_nhwc(send(x, misaligned), other, channels)
    assert_same(found, PRIMITIVES.to_nhwc(x, other, channels))


@settings(max_examples=tries(60))
@given(shapes, wanted, storage_dtypes, storage_dtypes, seeds, st.booleans())
def test_to_nchw(device, shape, channels, dtype, other, seed, misaligned):
    x = arrays(np.random.default_rng(seed), shape, dtype)
    found = device.to_nchw(send(x, misaligned), other, channels)
    assert_same(found, PRIMITIVES.to_nchw(x, other, channels))


def test_each_is_one_launch(device):
    x = send(np.ones((3, 12, 5, 5), np.float32))
    assert device.launches_of("cast", x, FLOAT16) == 1
    assert device.launches_of("to_nhwc", x, BFLOAT16) == 1
    assert device.launches_of("to_nhwc", x[:, :3].copy(), FLOAT16, 4) == 1
    assert device.launches_of("to_nchw", x, FLOAT16) == 1
    assert device.launches_of("to_nchw", x[..., :4].copy(), FLOAT16, 3) == 1
