"""Addition and ReLU on CUDA, run on the host, beside NumPy's."""

import numpy as np
import pytest

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import STORAGE, arrays
from tests.stand_ins.cuda_on_host import HostCuda, same, send


@pytest.fixture(scope="module")
def cuda():
    return HostCuda()


@pytest.mark.parametrize("misaligned", [False, True])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 3, 8), (3, 5), (4099,), (1,), ()])
@pytest.mark.parametrize(("name", "inputs"), [("add", 2), ("relu", 1), ("relu_backward", 2)])
def test_each_is_one_launch_and_the_same(cuda, name, inputs, dtype, shape, misaligned):
    if shape == () and name != "add":
        pytest.skip("only sums are of numbers, too")
    rng = np.random.default_rng(0)
    given = [arrays(rng, shape, dtype, scale) for scale in (1.0, 100.0)[:inputs]]
    given[0].reshape(-1)[-1] = np.nan if name == "relu" else np.inf
    with cuda.counting() as found:
        y = getattr(cuda, name)(*[send(array, misaligned and place == inputs - 1) for place, array in enumerate(given)])
    assert (found.kernels, found.plans) == (1, [])
    same(y, getattr(PRIMITIVES, name)(*given))
