"""Kernels of biases, run on the host, beside NumPy's."""

import numpy as np
import pytest
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import FLOAT32, accumulated, arrays, assert_close, channel_counts, exact
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, assert_same, receive, send

shapes = st.tuples(st.integers(1, 200), channel_counts) | st.tuples(
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), channel_counts
)


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


@pytest.mark.parametrize("shape", [(256, 16), (256, 1000), (20_000, 40), (3, 100, 100, 3), (70_000, 1)])
def test_many_rows(device, shape):
    """They are distributed over blocks; that is one launch all the same, and not less exact."""
    dy = arrays(np.random.default_rng(0), shape, np.float16, mean=1)
    found = receive(device.bias_grad(send(dy), np.float32))
    axes = tuple(range(len(shape) - 1))
    # No sum of a thread has more than a hundredth of many terms.
    count = dy[..., 0].size // 100 if dy[..., 0].size > 10_000 else len(dy)
    assert_close(found, exact(dy).sum(axes), FLOAT32, accumulated(count, np.abs(exact(dy)).sum(axes)))
    assert device.launches_of("bias_grad", send(dy), np.float32) == 1
    b = arrays(np.random.default_rng(1), shape[-1:], FLOAT32)
    assert_same(device.add_bias(send(dy), send(b)), PRIMITIVES.add_bias(dy, b))
    assert device.launches_of("add_bias", send(dy), send(b)) == 1


def test_few_rows_of_many_columns_are_summed_by_many_blocks():
    """The gradient of the last bias at 256 images, with the blocks of a device: no thread has more than 4 rows."""

    class Launcher(HostLauncher):
        threads = 256

    device = OwnKernels(Launcher())
    device.bias_grad(send(np.ones((256, 1000), np.float16)), np.float32)
    assert device.launcher.launches == [32]


def test_a_sum_is_the_same_every_time(device):
    """Blocks and threads come in another order every second time."""
    dy = send(arrays(np.random.default_rng(0), (20_000, 24), np.float32))
    first, second = (receive(device.bias_grad(dy, np.float32)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_no_rows(device):
    assert not receive(device.bias_grad(send(np.ones((0, 5), np.float16)), np.float16)).any()
    assert device.add_bias(send(np.ones((0, 5), np.float16)), send(np.ones(5, np.float16))).shape == (0, 5)
