"""ReLU on CUDA, run on the host, beside NumPy's."""

import numpy as np
import pytest

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import STORAGE, arrays
from tests.stand_ins.cuda_on_host import HostCuda, same, send


@pytest.fixture(scope="module")
def cuda():
    return HostCuda()


@pytest.mark.parametrize("shape", [(2, 3, 3, 8), (3, 5), (1,)])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_relu_is_one_launch_and_the_same(cuda, dtype, shape):
    x = arrays(np.random.default_rng(0), shape, dtype)
    x.reshape(-1)[0] = np.nan
    with cuda.counting() as found:
        y = cuda.relu(send(x))
    assert (found.kernels, found.plans) == (1, [])
    same(y, PRIMITIVES.relu(x))


@pytest.mark.parametrize("shape", [(2, 3, 3, 8), (3, 5), (1,)])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_relu_backward_is_one_launch_and_the_same(cuda, dtype, shape):
    rng = np.random.default_rng(0)
    dy, y = arrays(rng, shape, dtype), np.maximum(arrays(rng, shape, dtype), 0)
    with cuda.counting() as found:
        dx = cuda.relu_backward(*send((dy, y)))
    assert (found.kernels, found.plans) == (1, [])
    same(dx, PRIMITIVES.relu_backward(dy, y))
