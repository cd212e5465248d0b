"""Linear layers on CUDA, run on the host: as convolutions of cuDNN's stand-in, beside FP64."""

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.backends.primitive_cases import FLOAT16
from tests.stand_ins.cuda_on_host import HostCuda, send

sizes = st.sampled_from([1, 2, 3, 8, 17, 64, 129])


@pytest.fixture(scope="module")
def cuda():
    return HostCuda()


def test_one_launch_each(cuda):
    """Among them a head of ten classes: its channels need no padding."""
    x, w, b = send(tuple(np.ones(shape, np.float16) for shape in ((7, 64), (10, 64), (10,))))
    for plan, call in {
        "conv_fprop+bias": lambda: cuda.linear(x, w, b),
        "conv_fprop": lambda: cuda.linear(x, w),
        "conv_dgrad": lambda: cuda.linear_dgrad(cuda._empty((7, 10), FLOAT16), w),
        "conv_wgrad": lambda: cuda.linear_wgrad(x, cuda._empty((7, 10), FLOAT16)),
    }.items():
        with cuda.counting() as found:
            call()
        assert (found.kernels, found.plans) == (0, [plan])
