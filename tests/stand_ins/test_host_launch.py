"""The host's stand-in for a GPU sees what would go wrong there: kernels with a mistake each."""

import numpy as np
import pytest

from mixprec.backends.launch import text_of
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import send

pytestmark = pytest.mark.slow

_BARRIER = "__syncthreads();"
_SOURCES = {
    "neighbour": """
__global__ void __launch_bounds__(THREADS) neighbour(float* x, float* y) {
    __shared__ float all[THREADS];
    all[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = all[threadIdx.x ^ 1];
}
""",
    "rounds": """
__global__ void __launch_bounds__(THREADS) rounds(float* x, float* y) {
    __shared__ float first;
    float sum = 0;
    for (int round = 0; round < 4; ++round) {
        if (threadIdx.x == round) first = x[round];
        __syncthreads();
        sum += first;
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}
""",
}


@pytest.fixture
def launcher():
    return HostLauncher()


def run(launcher, name, source, x, blocks=1):
    y = launcher.empty(x.shape, x.dtype)
    source = f"#define THREADS {launcher.threads}\n{text_of('mixprec.backends', 'words.cuh')}{source}"
    kernel = launcher.compile(source, (name,))[name]
    launcher.launch(kernel, blocks, (launcher.address(x), launcher.address(y)))
    return np.asarray(y)


@pytest.fixture
def x(launcher):
    return send(np.arange(1, launcher.threads + 1, dtype=np.float32))


def expected(name, x):
    x = np.asarray(x)
    return x[np.arange(len(x)) ^ 1] if name == "neighbour" else np.full_like(x, x[:4].sum())


@pytest.mark.parametrize("name", _SOURCES)
def test_right_kernels(launcher, x, name):
    np.testing.assert_array_equal(run(launcher, name, _SOURCES[name], x, blocks=3), expected(name, x))


@pytest.mark.parametrize(
    ("name", "missing"), [("neighbour", 0), ("rounds", 0), ("rounds", 1)], ids=["write-read", "round", "read-write"]
)
def test_a_missing_barrier(launcher, x, name, missing):
    before, *after = _SOURCES[name].split(_BARRIER)
    parts = [before, *after]
    source = "".join(part + (_BARRIER if i != missing else "") for i, part in enumerate(parts[:-1])) + parts[-1]
    assert not np.array_equal(run(launcher, name, source, x), expected(name, x))


def test_shared_memory_that_nobody_has_written(launcher, x):
    source = """
__global__ void unwritten(float* x, float* y) {
    __shared__ float sums[2][THREADS];
    if (threadIdx.x) sums[1][threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = sums[1][threadIdx.x];
}
"""
    found = run(launcher, "unwritten", source, x, blocks=2)
    assert np.isnan(found[0])
    np.testing.assert_array_equal(found[1:], np.asarray(x)[1:])


def test_a_thread_that_leaves_before_a_barrier(launcher, x):
    source = """
__global__ void early(float* x, float* y) {
    if (threadIdx.x == 5) return;
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}
"""
    with pytest.raises(AssertionError, match="barrier to which others never come"):
        run(launcher, "early", source, x)


@pytest.mark.parametrize(("statement", "words"), [("load_four(u64(x) + 4, y)", 4), ("store_two(u64(y) + 4, word)", 2)])
def test_an_access_that_is_not_aligned(launcher, x, statement, words):
    source = f"""
__global__ void askew(float* x, float* y) {{
    u32 word[{words}] = {{}};
    if (threadIdx.x == 0) {statement};
}}
"""
    with pytest.raises(AssertionError, match="not aligned"):
        run(launcher, "askew", source, x)


def test_threads_take_turns_in_many_orders(launcher):
    """Of any two threads each is the first one sometimes."""
    source = """
__global__ void turns(float* x, float* y) { y[threadIdx.x] = x[0]++; }
"""
    first = np.zeros((launcher.threads, launcher.threads), bool)
    for _ in range(20):
        turn = run(launcher, "turns", source, send(np.zeros(launcher.threads, np.float32)))
        first |= turn[:, None] < turn
    assert (first | first.T | np.eye(launcher.threads, dtype=bool)).all()
    assert (first & first.T).mean() > 0.95
