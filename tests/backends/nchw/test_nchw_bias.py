"""Biases in Chainer's layout by own kernels, on the host and on a GPU: bit for bit."""

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.nchw.bias import PlaneBiases
from mixprec.backends.nchw.planes import Tiling
from tests.backends.primitive_cases import STORAGE, arrays, exact, seeds, storage_dtypes
from tests.cases import tries
from tests.stand_ins.cuda_sides import both_sides
from tests.stand_ins.device_stand_in import DeviceArray
from tests.stand_ins.kernels_on_host import odd_values

shapes = st.tuples(
    st.integers(1, 5),
    st.sampled_from([1, 2, 3, 5, 8, 16, 17, 40]),
    st.sampled_from([1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 49, 64, 99, 200]),
)


def check(side, y, b, misaligned=False):
    """Beside NumPy in float32, rounded once."""
    along = (slice(None), *(None,) * (y.ndim - 2))
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (y.astype(np.float32) + b.astype(np.float32)[along]).astype(y.dtype)
    sent = side.send(y, misaligned)
    assert PlaneBiases(side.cuda.launcher, side.cuda.cudnn).add_bias(sent, side.send(b)) is None
    found = side.receive(sent)
    assert found.dtype == y.dtype
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(exact(found), exact(expected))


@settings(max_examples=tries(80))
@given(shape=shapes, dtype=storage_dtypes, misaligned=st.booleans(), odd=st.booleans(), seed=seeds)
def test_biases(host, shape, dtype, misaligned, odd, seed):
    rng = np.random.default_rng(seed)
    y = odd_values(rng, shape, dtype) if odd else arrays(rng, shape, dtype)
    check(host, y, arrays(rng, shape[1], dtype), misaligned)


@both_sides
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("shape", [(3, 8, 6, 8), (5, 16, 7, 7), (40, 24), (2, 3, 3, 4, 6), (1, 1100, 3, 3)], ids=str)
@pytest.mark.parametrize("misaligned", [False, True])
def test_biases_by_own_kernels(side, shape, dtype, misaligned):
    rng = np.random.default_rng(0)
    check(side, arrays(rng, shape, dtype), arrays(rng, shape[1], dtype), misaligned)


@pytest.mark.parametrize(
    ("shape", "launches"), [((0, 3, 4, 4), 0), ((2, 3, 0, 4), 0), ((2, 0, 3, 3), 0), ((2, 16, 7, 7), 1)]
)
def test_there_is_one_launch_or_none_for_an_empty_array(host, shape, launches):
    with host.cuda.counting() as found:
        check(host, np.zeros(shape, np.float16), np.ones(shape[1], np.float16))
    assert found.kernels == launches


def test_indices_beyond_32_bits(host):
    """2**33 elements, of which the threads are told that each plane has eight: no others come into memory."""
    images, channels, pixels = shape = 2, 2**7, 2**25 + 8
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python 3.10 has no name for
    y = np.frombuffer(mmap.mmap(-1, 2 * images * channels * pixels, flags=flags), np.float16).reshape(shape)
    b = np.arange(1, channels + 1, dtype=np.float16)
    tiling = Tiling(8, 1, 32, 1, images, channels // 32)
    PlaneBiases(host.cuda.launcher, None)._run_planes("add_bias", tiling, [y.view(DeviceArray), host.send(b)], [])
    np.testing.assert_array_equal(y[:, :, :8], np.broadcast_to(b[:, None], (images, channels, 8)))
    assert not y[:, :, 8:16].any()
    assert not y[:, :, -8:].any()
