"""Pooling kernels, run on the host, beside NumPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.geometry import Pooling
from tests.backends.primitive_cases import (
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    exact,
    poolings,
    seeds,
    storage_dtypes,
)
from tests.cases import tries
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, assert_same, odd_values, receive, send

RESNET = Pooling((3, 3), (2, 2), (1, 1))


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


@settings(max_examples=tries(40))
@given(case=poolings(), dtype=storage_dtypes, seed=seeds, odd=st.booleans(), misaligned=st.booleans())
def test_max_pool(device, case, dtype, seed, odd, misaligned):
    check_max_pool(device, case, dtype, seed, odd, misaligned)


def check_max_pool(device, case, dtype, seed, odd, misaligned):
    """Compares both passes with NumPy's, bit for bit."""
    pooling, shape = case
    rng = np.random.default_rng(seed)
    x = odd_values(rng, shape, dtype) if odd else arrays(rng, shape, dtype)
    y, where = device.max_pool(send(x, misaligned), pooling)
    expected_y, expected_where = PRIMITIVES.max_pool(x, pooling)
    assert_same(y, expected_y, sign_of_zero=False)  # NumPy's has one zero only
    assert_same(where, expected_where)
    dy = arrays(rng, y.shape, dtype)
    dx = device.max_pool_backward(send(dy, misaligned), where, pooling, shape)
    assert_same(dx, PRIMITIVES.max_pool_backward(dy, expected_where, pooling, shape))


@st.composite
def windows_of_3x3(draw):
    """A pooling that has kernels of its own, most of them, and a shape of images."""
    stride = draw(st.sampled_from([(2, 2), (2, 2), (1, 1), (2, 1), (3, 4)]))
    pad, size = draw(st.tuples(*2 * [st.integers(0, 2)])), draw(st.tuples(*2 * [st.integers(3, 9)]))
    shape = draw(st.integers(1, 3)), *size, draw(st.sampled_from([1, 3, 8, 24]))
    return Pooling((3, 3), stride, pad, draw(st.booleans())), shape


@settings(max_examples=tries(40))
@given(case=windows_of_3x3(), dtype=storage_dtypes, seed=seeds, odd=st.booleans(), misaligned=st.booleans())
def test_max_pool_of_3x3(device, case, dtype, seed, odd, misaligned):
    check_max_pool(device, case, dtype, seed, odd, misaligned)


def test_windows_of_255_elements(device):
    """The greatest position that uint8 can hold."""
    pooling = Pooling((15, 17), (15, 17))
    x = np.zeros((1, 30, 34, 3), np.float16)
    x[:, 14::15, 16::17] = 1
    y, where = device.max_pool(send(x), pooling)
    assert (receive(y) == 1).all()
    assert (receive(where) == 254).all()
    dx = device.max_pool_backward(y, where, pooling, x.shape)
    assert_same(dx, x)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_channels_of_many_blocks(device, dtype):
    """A block has fewer channels than an image has, and fewer rows than are added up."""
    rng = np.random.default_rng(0)
    x = arrays(rng, (2, 7, 7, 1040), dtype)
    assert_same(device.max_pool(send(x), RESNET)[0], PRIMITIVES.max_pool(x, RESNET)[0])
    found = receive(device.global_average_pool(send(x)))
    assert_close(found, exact(x).mean((1, 2)), dtype, accumulated(50, np.abs(exact(x)).mean((1, 2))))


def test_means_of_many_pixels(device):
    """A thread reads and writes several rows."""
    rng = np.random.default_rng(0)
    x = arrays(rng, (2, 60, 61, 40), np.float16, mean=1)
    found = receive(device.global_average_pool(send(x)))
    assert_close(found, exact(x).mean((1, 2)), x.dtype, accumulated(60 * 61 // 8, np.abs(exact(x)).mean((1, 2))))
    dx = device.global_average_pool_backward(send(found), x.shape)
    assert_same(dx, PRIMITIVES.global_average_pool_backward(found, x.shape))


def test_each_is_one_launch(device):
    x = send(np.ones((3, 6, 6, 16), np.float16))
    y, where = device.max_pool(x, RESNET)
    pooled = device.global_average_pool(x)
    assert device.launches_of("max_pool", x, RESNET) == 1
    assert device.launches_of("max_pool_backward", y, where, RESNET, x.shape) == 1
    assert device.launches_of("average_pool", x, RESNET) == 1
    assert device.launches_of("average_pool_backward", y, RESNET, x.shape) == 1
    assert device.launches_of("global_average_pool", x) == 1
    assert device.launches_of("global_average_pool_backward", pooled, x.shape) == 1
