"""Linear layers on CUDA, run on the host: as convolutions of cuDNN's stand-in, beside FP64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.primitive_cases import (
    FLOAT16,
    FLOAT32,
    accumulated,
    arrays,
    assert_close,
    exact,
    seeds,
    storage_dtypes,
)
from tests.cases import tries
from tests.stand_ins.cuda_on_host import HostCuda, receive, send

sizes = st.sampled_from([1, 2, 3, 8, 17, 64, 129])


@pytest.fixture(scope="module")
def cuda():
    return HostCuda()


@settings(max_examples=tries(50))
@given(batch=sizes, inputs=sizes, outputs=sizes, dtype=storage_dtypes, bias=st.sampled_from([0, 1, 2]), seed=seeds)
def test_linear(cuda, batch, inputs, outputs, dtype, bias, seed):
    rng = np.random.default_rng(seed)
    x, w, dy = (arrays(rng, shape, dtype) for shape in ((batch, inputs), (outputs, inputs), (batch, outputs)))
    b = arrays(rng, outputs, (dtype, dtype, FLOAT32)[bias]) if bias else None
    wide_x, wide_w, wide_dy = map(exact, (x, w, dy))
    offset = 0.0 if b is None else exact(b)
    terms = np.abs(wide_x) @ np.abs(wide_w).T + np.abs(offset)
    y = receive(cuda.linear(*send((x, w)), send(b)))
    assert_close(y, wide_x @ wide_w.T + offset, dtype, accumulated(inputs + 1, terms))
    dx, dw = receive((cuda.linear_dgrad(*send((dy, w))), cuda.linear_wgrad(*send((x, dy)))))
    assert_close(dx, wide_dy @ wide_w, dtype, accumulated(outputs, np.abs(wide_dy) @ np.abs(wide_w)))
    assert_close(dw, wide_dy.T @ wide_x, dtype, accumulated(batch, np.abs(wide_dy).T @ np.abs(wide_x)))


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
