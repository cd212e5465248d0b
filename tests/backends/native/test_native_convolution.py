"""What the native library promises of convolutions beside their values, which tests/backends/cpu compares."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends import cpu
from mixprec.backends.cpu import native_primitives as native
from mixprec.backends.geometry import Convolution, Following
from mixprec.base.dtypes import BFLOAT16
from mixprec.native.native_library import library
from tests.backends.primitive_cases import FLOAT16, FLOAT32, STORAGE, arrays
from tests.cases import tries

pytestmark = pytest.mark.skipif(library() is None, reason="there is no native library")
PRIMITIVES = native.PRIMITIVES


def results(convolution, shape, w_shape, dtype):
    rng = np.random.default_rng(0)
    x, w = arrays(rng, shape, dtype), arrays(rng, w_shape, dtype)
    y = PRIMITIVES.conv_fprop(x, w, convolution, relu=True)
    dx = PRIMITIVES.conv_dgrad(y, w, convolution, shape)
    return y, dx, PRIMITIVES.conv_wgrad(x, y, convolution, w_shape)


LAYERS = [
    (Convolution((2, 2), (3, 3)), (2, 32, 32, 3), (64, 7, 7, 3)),
    (Convolution(pad=(1, 1)), (2, 9, 9, 40), (300, 3, 3, 40)),
    (Convolution((2, 1), (1, 2), (1, 2), 2), (3, 17, 15, 12), (10, 3, 3, 6)),
    (Convolution(), (1, 1, 8, 64), (100, 1, 1, 64)),
    (Convolution(pad=(1, 1)), (3, 14, 14, 32), (40, 3, 3, 32)),
    (Convolution(), (3, 5, 7, 64), (70, 1, 1, 64)),
    (Convolution(pad=(1, 1)), (4, 3, 3, 288), (34, 3, 3, 288)),
]


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=["stem", "3x3", "groups", "linear", "shifted", "in place", "deep"])
def test_any_number_of_threads_gives_the_same_bits(layer, dtype):
    before = library().threads()
    try:
        library().set_threads(1)
        expected = results(*layer, dtype)
        for count in (2, 5):
            library().set_threads(count)
            for found, one in zip(results(*layer, dtype), expected, strict=True):
                np.testing.assert_array_equal(found, one)
    finally:
        library().set_threads(before)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    "layer", [*LAYERS[:3], *LAYERS[4:]], ids=["stem", "3x3", "groups", "shifted", "in place", "deep"]
)
def test_an_image_does_not_depend_on_its_batch(layer, dtype):
    convolution, shape, w_shape = layer
    rng = np.random.default_rng(0)
    x, w = arrays(rng, shape, dtype), arrays(rng, w_shape, dtype)
    y = PRIMITIVES.conv_fprop(x, w, convolution)
    dx = PRIMITIVES.conv_dgrad(y, w, convolution, shape)
    alone = PRIMITIVES.conv_fprop(x[1:2], w, convolution)
    np.testing.assert_array_equal(alone, y[1:2])
    np.testing.assert_array_equal(PRIMITIVES.conv_dgrad(alone, w, convolution, (1, *shape[1:])), dx[1:2])


ODD = [  # depths 1, 3, 27 and 35, and odd numbers of pixels: the last number of a sum has no partner
    (Convolution(), (1, 1, 1, 1), (3, 1, 1, 1)),
    (Convolution(), (3, 1, 1, 3), (5, 1, 1, 3)),
    (Convolution(pad=(1, 1)), (1, 5, 3, 3), (4, 3, 3, 3)),
    (Convolution((2, 1), (1, 2), (1, 2)), (1, 7, 9, 7), (33, 1, 5, 7)),
    (Convolution((1, 2), (1, 0), (2, 1), 3), (3, 5, 5, 9), (21, 3, 3, 3)),
]


@pytest.mark.parametrize("layer", ODD, ids=lambda layer: "x".join(map(str, layer[2])))
def test_sums_of_an_odd_number_of_bf16_products_are_exact(layer):
    """Whole numbers: float32 holds each sum, so that BF16 results are those of NumPy's float64, rounded once."""
    convolution, shape, w_shape = layer
    rng = np.random.default_rng(0)
    dy_shape = (shape[0], *convolution.out_size(shape[1:3], w_shape[1:3]), w_shape[0])
    x, w, dy = (rng.integers(-9, 10, some).astype(np.float64) for some in (shape, w_shape, dy_shape))
    narrow_x, narrow_w, narrow_dy = (some.astype(BFLOAT16) for some in (x, w, dy))
    pairs = [
        (PRIMITIVES.conv_fprop(narrow_x, narrow_w, convolution), cpu.PRIMITIVES.conv_fprop(x, w, convolution)),
        (
            PRIMITIVES.conv_dgrad(narrow_dy, narrow_w, convolution, shape),
            cpu.PRIMITIVES.conv_dgrad(dy, w, convolution, shape),
        ),
        (
            PRIMITIVES.conv_wgrad(narrow_x, narrow_dy, convolution, w_shape),
            cpu.PRIMITIVES.conv_wgrad(x, dy, convolution, w_shape),
        ),
    ]
    for found, expected in pairs:
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(BFLOAT16).astype(np.float64))


def test_subnormal_bf16_numbers_are_zero_where_the_processor_multiplies_bf16():
    x, w = np.full((1, 1, 1, 3), 2.0**-130, BFLOAT16), np.full((2, 1, 1, 3), 2.0**100, BFLOAT16)
    expected = 0 if library().instructions() in ("AVX-512 with BF16", "AVX-512 with AMX") else 3 * 2.0**-30
    np.testing.assert_array_equal(PRIMITIVES.conv_fprop(x, w, Convolution()).astype(np.float64), expected)


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["avx2", "avx512", "avx512bf16"])
def test_other_instructions_compute_the_same_but_for_rounding(instructions):
    """In a process of its own, as there is no way back: the tests of values."""
    if instructions == "avx512bf16" and library().instructions() in ("AVX-512 with BF16", "AVX2"):
        pytest.skip("the other tests use AVX512_BF16, or there is none")
    chosen = ["-k", "native and (layers or float64 or linear)", "-m", ""]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *chosen]
    tests = ["tests/backends/cpu/test_convolution.py", "tests/backends/cpu/test_linear.py"]
    done = subprocess.run(
        [*command, *tests],
        env={**os.environ, "MIXPREC_NATIVE": instructions},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_memory_of_a_first_call_is_enough():
    """In a process of its own, as the memory of a thread stays: rows of few channels of many, and fewer than a tile."""
    program = """
import numpy as np
from mixprec.backends.cpu.native_primitives import PRIMITIVES
from mixprec.backends.geometry import Convolution
x, w, convolution = np.ones((1, 1, 13, 256), np.float32), np.ones((128, 1, 1, 4), np.float32), Convolution(groups=64)
for _ in range(3):
    y = PRIMITIVES.conv_fprop(x, w, convolution)
    dx = PRIMITIVES.conv_dgrad(y, w, convolution, x.shape)
assert (y == 4).all() and (dx == 8).all()
"""
    for threads in ("1", "2"):
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "OMP_NUM_THREADS": threads}, check=True)


def test_a_following_normalization_takes_its_own_sums():
    x, w = (arrays(np.random.default_rng(0), shape, FLOAT32) for shape in ((2, 4, 4, 3), (5, 1, 1, 3)))
    y, sums = PRIMITIVES.conv_fprop(x, w, Convolution(), statistics=Following())
    assert sums is None
    np.testing.assert_array_equal(y, PRIMITIVES.conv_fprop(x, w, Convolution()))


def test_arrays_of_any_layout():
    x, w = (arrays(np.random.default_rng(0), shape, FLOAT16) for shape in ((4, 6, 6, 8), (5, 3, 3, 8)))
    dy = cpu.PRIMITIVES.conv_fprop(x[::2], w, Convolution())
    for primitive, *both in (
        (PRIMITIVES.conv_fprop, x[::2], w),
        (PRIMITIVES.conv_wgrad, x[::2], dy),
        (PRIMITIVES.conv_dgrad, dy[:, ::-1], w),
    ):
        rest = {"conv_wgrad": [w.shape], "conv_dgrad": [(2, 6, 6, 8)]}.get(primitive.__name__, [])
        expected = primitive(*map(np.ascontiguousarray, both), Convolution(), *rest)
        np.testing.assert_array_equal(primitive(*both, Convolution(), *rest), expected)


# --- no argument from Python crashes it

integers = st.one_of(st.integers(-1, 5), st.sampled_from([1 << 20, (1 << 31) - 1, 1 << 31, 1 << 62, 1 << 70]))


@settings(max_examples=tries(300))
@given(
    shapes=st.tuples(st.tuples(*4 * [integers]), st.tuples(*4 * [integers])),
    moves=st.tuples(*7 * [integers]),
    sizes=st.tuples(*3 * [st.integers(0, 200)]),
    primitive=st.sampled_from(["conv_fprop", "conv_dgrad", "conv_wgrad"]),
    right=st.booleans(),
)
def test_wrong_sizes_are_errors(shapes, moves, sizes, primitive, right):
    (n, h, w, c), (k, r, s, d) = shapes
    if right:  # the first two arrays are as large as the shapes say, where that is not much
        sizes = [n * h * w * c, k * r * s * d, sizes[2]]
        if not all(0 <= size < 1000 for size in sizes):
            return
    one, other, out = (np.zeros(size, np.float32) for size in sizes)
    optional = [None, 0] if primitive == "conv_fprop" else []
    try:
        getattr(library(), primitive)(*shapes, moves, one, other, *optional, out)
    except (ValueError, OverflowError):
        return
    assert c >= d * moves[6]


MESSAGES = [
    ({"w_shape": (5, 3, 3, 9)}, "5 filters and 9 channels of 1 groups do not fit"),
    ({"w_shape": (5, 7, 3, 8)}, "the filter is larger than the input"),
    ({"moves": (0, 1, 0, 0, 1, 1, 1)}, "stride, dilation and groups are above 0"),
    ({"x": np.zeros(10, np.float32)}, "x has 10 elements, not 576"),
    ({"y": np.zeros(10, np.float32)}, "y has 10 elements, not 160"),
    ({"y": np.zeros(160, np.float16)}, "y has format 'e', not one of 'f'"),
    ({"x_shape": (2, 6, 6)}, "x_shape must be a tuple of 4 integers"),
]


@pytest.mark.parametrize(("change", "message"), MESSAGES)
def test_messages(change, message):
    given = (
        {"x_shape": (2, 6, 6, 8), "w_shape": (5, 3, 3, 8), "moves": (1, 1, 0, 0, 1, 1, 1)}
        | {"x": np.zeros(576, np.float32), "w": np.zeros(360, np.float32), "b": None, "relu": 0}
        | {"y": np.zeros(160, np.float32)}
    )
    with pytest.raises(ValueError, match=f"^conv_fprop: {message}$"):
        library().conv_fprop(*(given | change).values())


def test_no_memory_is_an_error():
    """A filter of one output and so many channels is padded to a panel, which a limit on memory does not allow."""
    program = """
import resource, numpy as np
from mixprec.backends.geometry import Convolution
from mixprec.backends.cpu.native_primitives import PRIMITIVES
x, w = np.zeros((1, 1, 1, 1 << 22), np.float32), np.zeros((1, 1, 1, 1 << 22), np.float32)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), now + (64 << 20)))
try:
    PRIMITIVES.conv_fprop(x, w, Convolution())
except MemoryError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
