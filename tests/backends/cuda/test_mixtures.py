"""The kernel of mixed images, run on the host, beside that of NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import arrays, assert_close, exact, seeds, storage_dtypes
from tests.cases import tries
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, receive, send


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


@settings(max_examples=tries(60))
@given(
    shape=st.sampled_from([(1, 1, 1, 1), (2, 4, 4, 4), (3, 5, 7, 3), (4, 9, 8, 3), (5, 16, 17, 4)]),
    share=st.sampled_from([0.0, 1.0, 0.3, 2.0**-30]),
    corners=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    dtype=storage_dtypes,
    misaligned=st.booleans(),
    seed=seeds,
)
def test_mix_images(device, shape, share, corners, dtype, misaligned, seed):
    x = arrays(np.random.default_rng(seed), shape, dtype)
    (top, bottom), (left, right) = (
        sorted(round(corner * side) for corner in pair)
        for side, pair in zip(shape[1:3], (corners[:2], corners[2:]), strict=True)
    )
    box = top, left, bottom, right
    found = receive(device.mix_images(send(x, misaligned), share, box))
    of_both = np.abs(exact(x)) + np.abs(exact(x)[::-1])
    assert_close(found, exact(PRIMITIVES.mix_images(x, share, box)), dtype, 4 * np.finfo(np.float32).eps * of_both)
    np.testing.assert_array_equal(found[:, top:bottom, left:right], x[::-1, top:bottom, left:right])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_infinities_are_copied(device, share):
    x = np.array([1, np.inf, -np.inf, 2], np.float16).reshape(4, 1, 1, 1)
    found = receive(device.mix_images(send(x), share, (0, 0, 0, 0)))
    np.testing.assert_array_equal(found, x if share else x[::-1])


def test_it_is_one_launch(device):
    x = send(np.zeros((4, 32, 32, 4), np.float16))
    assert device.launches_of("mix_images", x, 0.3, (1, 2, 3, 4)) == 1


def test_an_empty_batch(device):
    assert device.mix_images(send(np.zeros((0, 4, 4, 3), np.float16)), 0.5, (0, 0, 0, 0)).shape == (0, 4, 4, 3)
