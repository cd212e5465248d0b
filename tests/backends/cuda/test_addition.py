"""Addition on CUDA, run on the host, beside NumPy's."""

import numpy as np
import pytest

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import STORAGE, arrays
from tests.stand_ins.cuda_on_host import HostCuda, same, send


@pytest.fixture(scope="module")
def cuda():
    return HostCuda()


@pytest.mark.parametrize("misaligned", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 3, 8), (3, 5), (4099,), ()])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_a_sum_is_one_launch_and_the_same(cuda, dtype, shape, misaligned):
    rng = np.random.default_rng(0)
    a, b = arrays(rng, shape, dtype), arrays(rng, shape, dtype, 100.0)
    a.reshape(-1)[-1] = np.inf
    with cuda.counting() as found:
        y = cuda.add(send(a), send(b, misaligned))
    assert (found.kernels, found.plans) == (1, [])
    same(y, PRIMITIVES.add(a, b))
