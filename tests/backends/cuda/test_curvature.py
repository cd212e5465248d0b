"""Second moments, inverses and products for K-FAC, beside FP64: on the host's stand-ins, and on a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cpu import PRIMITIVES
from mixprec.backends.cuda import curvature
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.geometry import Convolution, Saved
from tests.backends.primitive_cases import EPS32, FLOAT16, FLOAT32, STORAGE, accumulated, arrays, assert_close, exact
from tests.stand_ins.cuda_sides import both_sides, on_devices

dtypes = pytest.mark.parametrize("dtype", STORAGE, ids=str)

# (convolution, (N, H, W, C), (R, S), channels of the filter in all groups, bias)
PATCHES = {
    "3x3, bias": (Convolution(pad=(1, 1)), (2, 6, 5, 16), (3, 3), 16, True),
    "everything": (Convolution((2, 1), (2, 1), (1, 2)), (3, 7, 9, 8), (4, 2), 8, True),
    "3 of 4 channels": (Convolution((2, 2), (3, 3)), (2, 11, 10, 4), (7, 7), 3, True),
    "channels no multiple of 8": (Convolution(pad=(0, 1)), (2, 5, 4, 12), (2, 3), 12, True),
    "groups": (Convolution(pad=(1, 1), groups=4), (2, 5, 6, 32), (3, 3), 32, True),
    "depthwise": (Convolution((2, 2), (1, 1), groups=9), (2, 5, 6, 9), (3, 3), 9, False),
    "1x1": (Convolution(), (2, 5, 6, 24), (1, 1), 24, False),
    "1x1, bias": (Convolution(), (2, 5, 6, 24), (1, 1), 24, True),
    "1x1, groups": (Convolution(groups=3), (2, 5, 6, 24), (1, 1), 24, False),
    "1x1, stride": (Convolution((2, 2)), (2, 5, 6, 16), (1, 1), 16, False),
    "1x1, padding and stride": (Convolution((2, 2), (1, 1)), (2, 3, 3, 16), (1, 1), 16, False),
    "linear": (Convolution(), (33, 1, 1, 20), (1, 1), 20, False),
}
LARGE_PATCHES = {
    "56x56x64": (Convolution(pad=(1, 1)), (8, 56, 56, 64), (3, 3), 64, False),
    "224x224x4": (Convolution((2, 2), (3, 3)), (8, 224, 224, 4), (7, 7), 3, True),
    "7x7x512": (Convolution(pad=(1, 1)), (8, 7, 7, 512), (3, 3), 512, False),
    "32 groups": (Convolution(pad=(1, 1), groups=32), (8, 28, 28, 256), (3, 3), 256, False),
}
SIZES = [(9, 5), (2, 1), (3, 64)]  # numbers of matrices, and of their rows
BLOCKED_SIZES = [(2, 65), (1, 130), (3, 128)]


def patches(x, convolution, filter_size, groups, bias):
    """Returns what a filter sees (groups, positions, D) in FP64, from an input of as many channels as it has."""
    (up, left), (down, across), (tall, wide) = convolution.pad, convolution.stride, convolution.dilation
    padded = np.pad(exact(x), ((0, 0), (up, up), (left, left), (0, 0)))
    rows, columns = convolution.out_size(x.shape[1:3], filter_size)
    seen = np.stack(
        [
            padded[:, r * tall :: down, s * wide :: across][:, :rows, :columns]
            for r in range(filter_size[0])
            for s in range(filter_size[1])
        ],
        axis=3,
    )
    seen = seen.reshape(len(x) * rows * columns, seen.shape[3], groups, -1).transpose(2, 0, 1, 3)
    seen = seen.reshape(groups, len(x) * rows * columns, -1)
    return np.concatenate([seen, np.ones((*seen.shape[:2], 1))], axis=2) if bias else seen


def moments_of(rows, before):
    """Returns the sum of ``r r^T`` over rows (groups, M, D), added to what was there, and its bound in float32."""
    magnitude = np.abs(rows).transpose(0, 2, 1) @ np.abs(rows) + np.abs(before)
    return rows.transpose(0, 2, 1) @ rows + before, accumulated(rows.shape[1] + 1, magnitude)


def check_patches(side, case, dtype, misaligned=False):
    convolution, shape, filter_size, channels, bias = {**PATCHES, **LARGE_PATCHES}[case]
    rng = np.random.default_rng(0)
    x = arrays(rng, shape, dtype)
    x[..., channels:] = 0
    groups = convolution.groups
    rows = patches(x[..., :channels], convolution, filter_size, groups, bias)
    before = arrays(rng, (groups, *2 * rows.shape[2:]), FLOAT32)
    out = side.send(before)
    given = side.send(x, misaligned), convolution, filter_size, out
    side.cuda.patch_moments(*given, bias=bias)
    expected, bound = moments_of(rows, exact(before))
    assert_close(side.receive(out), expected, FLOAT32, bound)


@on_devices(PATCHES)
@dtypes
def test_patch_moments(side, case, dtype):
    check_patches(side, case, dtype)


@both_sides
@dtypes
def test_patch_moments_of_an_array_that_is_not_aligned(side, dtype):
    for case in ("everything", "1x1"):
        check_patches(side, case, dtype, misaligned=True)


@pytest.mark.gpu
@pytest.mark.parametrize("case", LARGE_PATCHES)
@pytest.mark.parametrize("side", ["gpu"], indirect=True)
def test_patch_moments_of_large_images(side, case):
    check_patches(side, case, FLOAT16)


@pytest.mark.parametrize("side", ["host"], indirect=True)
@pytest.mark.parametrize(("rows", "chunks"), [(1 << 20, 1), (50, 3), (0, 108)])
def test_patches_are_written_in_chunks(side, monkeypatch, rows, chunks):
    """There are 108 rows of 72 numbers. Chunks end inside of images; each is one launch and one product."""
    monkeypatch.setattr(curvature, "_CHUNK", rows * 72 * 4)
    cublas, launcher = side.cuda.cublas, side.cuda.launcher
    launches, products = len(launcher.launches), len(cublas.calls)
    check_patches(side, "everything", FLOAT32)
    assert (len(launcher.launches) - launches, len(cublas.calls) - products) == (chunks, chunks)


def symmetric(rng, groups, size):
    """Returns matrices (groups, size, size) float32 with eigenvalues of about 0.1 to 10."""
    basis = np.linalg.qr(rng.standard_normal((groups, size, size)))[0]
    return ((basis * np.geomspace(0.1, 10, size)) @ basis.transpose(0, 2, 1)).astype(np.float32)


def inverses(side, moments, shifts):
    given, out = side.send((moments, shifts)), side.send(np.full(moments.shape, 7, np.float32))
    side.cuda.inverses(*given, out)
    np.testing.assert_array_equal(side.receive(given[0]), moments)
    return side.receive(out)


def check_inverses(side, groups, size):
    rng = np.random.default_rng(0)
    moments, shifts = symmetric(rng, groups, size), rng.uniform(0, 1, groups).astype(np.float32)
    found = inverses(side, moments, shifts)
    shifted = exact(moments) + shifts[:, None, None] * np.eye(size)
    expected = np.linalg.inv(shifted)
    assert found.dtype == np.float32
    # Of a stable method: the largest relative error is the condition number times a small multiple of `size` roundings.
    largest = np.linalg.norm(expected, 2, axis=(1, 2))
    condition = largest * np.linalg.norm(shifted, 2, axis=(1, 2))
    error = np.linalg.norm(found - expected, 2, axis=(1, 2)) / largest
    assert (error <= 4 * (size + 4) * EPS32 * condition).all()


@on_devices(SIZES, [(512, 10)])
def test_small_inverses_by_own_kernels(side, case):
    check_inverses(side, *case)


@on_devices(BLOCKED_SIZES, [(32, 288), (1, 2304)])
def test_inverses_by_blocks(side, case):
    check_inverses(side, *case)


def check_what_has_no_inverse(side, size):
    """All of an inverse is NaN of what is not positive definite, and of what is not finite, wherever that is."""
    rng = np.random.default_rng(0)
    moments, shifts = symmetric(rng, 9, size), np.zeros(9, np.float32)
    moments[1] -= 5 * np.eye(size, dtype=np.float32)
    shifts[2] = -0.2
    moments[3] = np.diag(np.arange(size)[::-1] > 0)  # only the last pivot is 0
    moments[4, 0, 0] = np.inf
    moments[5, -1, -1] = np.nan
    moments[6, 0, size // 2] = moments[6, size // 2, 0] = -np.inf
    shifts[7] = np.inf
    found = inverses(side, moments, shifts)
    assert np.isfinite(found[[0, 8]]).all()
    assert np.isnan(found[1:8]).all()
    moments[3], shifts[3] = 0, 4
    np.testing.assert_array_equal(inverses(side, moments, shifts)[3], np.eye(size) / 4)


@both_sides
@pytest.mark.parametrize("size", [3, 64])
def test_what_has_no_small_inverse_by_own_kernels(side, size):
    check_what_has_no_inverse(side, size)


@both_sides
def test_what_has_no_inverse_by_blocks(side):
    check_what_has_no_inverse(side, 129)  # the last block has one row


@pytest.mark.parametrize("size", [3, 130])
def test_what_has_no_inverse_on_numpy(size):
    check_what_has_no_inverse(SimpleNamespace(cuda=PRIMITIVES, send=lambda x: x, receive=lambda x: x), size)


@both_sides
def test_nothing(side):
    """No samples, no places, and sums of no terms."""
    empty, one = side.send(np.zeros((0, 3, 3, 8), np.float16)), side.send(np.ones((1, 8, 8), np.float32))
    side.cuda.patch_moments(empty, Convolution(pad=(1, 1)), (3, 3), side.send(np.ones((1, 72, 72), np.float32)))
    side.cuda.row_moments(empty, one)
    parameters = side.send(tuple(np.ones((4, 8), np.float32)))
    squares = side.send(np.ones((3, 8), np.float32))
    side.cuda.scale_moments(empty, empty, *parameters[:2], Saved(*parameters[2:]), squares)
    assert (side.receive(one) == 1).all()
    assert (side.receive(squares) == 1).all()
    product = side.cuda.products(*side.send((np.ones((2, 3, 0), np.float32), np.ones((2, 0, 4), np.float32))))
    np.testing.assert_array_equal(side.receive(product), np.zeros((2, 3, 4)))
    none = side.send(np.zeros((0, 3, 3), np.float32))
    side.cuda.inverses(none, side.send(np.zeros(0, np.float32)), none)


@both_sides
def test_a_graph_of_moments_inverses_and_products(side):
    """With other values in the same place; sizes of both kinds of inverses."""
    rng = np.random.default_rng(0)
    convolution = Convolution(pad=(1, 1))
    values = [arrays(rng, (2, 5, 6, 8), FLOAT16) for _ in range(2)]
    x, shifts = side.send(values[0]), side.send(np.full(1, 30, np.float32))
    large, small = (side.send(np.zeros((1, size, size), np.float32)) for size in (73, 8))
    inverse, other = (side.send(np.zeros((1, size, size), np.float32)) for size in (73, 8))
    w = side.send(arrays(rng, (1, 8, 73), FLOAT32))
    cuda = side.fresh()

    def step():
        cuda.patch_moments(x, convolution, (3, 3), large, bias=True)
        cuda.row_moments(x, small)
        cuda.inverses(large, shifts, inverse)
        cuda.inverses(small, shifts, other)
        return (cuda.products(cuda.products(other, w), inverse),)

    def reset(value):
        side.write(x, value)
        for array in (large, small):
            side.write(array, np.zeros(array.shape, np.float32))

    launch, outputs = side.graph_of(cuda, step)
    for value in (*values, values[0]):
        reset(value)
        side.wait()
        launch()
        found = side.receive((*outputs, large, small))
        reset(value)
        expected = side.receive((*step(), large, small))
        for one, another in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, another)
        a = moments_of(patches(value, convolution, (3, 3), 1, True), 0)[0] + 30 * np.eye(73)
        g = moments_of(exact(value).reshape(1, -1, 8), 0)[0] + 30 * np.eye(8)
        exactly = np.linalg.inv(g) @ exact(side.receive(w)) @ np.linalg.inv(a)
        np.testing.assert_allclose(found[0], exactly, atol=1e-3 * np.abs(exactly).max())


@both_sides
def test_a_first_use_in_a_capture_is_an_error(side):
    cuda = side.fresh()
    matrix = side.send(np.eye(8, dtype=np.float32)[None])
    with pytest.raises(CaptureError, match=r"^cuBLAS: .*while a CUDA graph captures; run the step eagerly first"):
        side.graph_of(cuda, lambda: (cuda.products(matrix, matrix),), warm=False)


@pytest.mark.parametrize("side", ["host"], indirect=True)
def test_each_stream_has_a_workspace_before_it_captures(side):
    cuda, matrix = side.fresh(), side.send(np.eye(8, dtype=np.float32)[None])
    with cuda.cudnn._device.on(7):
        cuda.products(matrix, matrix)
    with cuda.cudnn._device.on(7, capturing=True):
        cuda.products(matrix, matrix)
    with (
        cuda.cudnn._device.on(8, capturing=True),
        pytest.raises(CaptureError, match=r"^cuBLAS: .*run the step eagerly first, on the same stream"),
    ):
        cuda.products(matrix, matrix)


PRODUCTS = [
    ({}, "32F", "32F", "32F"),
    ({"tf32": True}, "32F", "32F_FAST_TF32", "32F"),
    ({"tf32": True, "tensor_cores": False}, *3 * ["32F_PEDANTIC"]),
]


@pytest.mark.parametrize("side", ["host"], indirect=True)
@pytest.mark.parametrize(
    ("settings", "half", "single", "product"), PRODUCTS, ids=["default", "TF32", "no Tensor cores"]
)
def test_products_of_float32_are_rounded_to_tf32_only_if_that_is_asked_for(side, settings, half, single, product):
    """As in convolutions; and the products with inverses never."""
    cudnn.configure(**settings)
    calls = side.cuda.cublas.calls
    del calls[:]
    for dtype in (FLOAT16, FLOAT32):
        side.cuda.row_moments(side.send(np.ones((5, 8), dtype)), side.send(np.ones((1, 8, 8), np.float32)))
    matrix = side.send(np.ones((1, 8, 8), np.float32))
    side.cuda.products(matrix, matrix)
    assert [kind for *_, kind in calls] == [half, single, product]


@pytest.mark.parametrize("side", ["host"], indirect=True)
def test_launches(side):
    """Products need no other ones, and no copies; a small inverse is one launch, whatever the number of matrices."""
    cuda = side.cuda
    x, out = side.send(np.ones((2, 4, 4, 16), np.float16)), side.send(np.ones((1, 16, 16), np.float32))
    half, shifts = side.send(np.ones((2, 8, 8), np.float32)), side.send(np.ones(2, np.float32))
    large = side.send(np.ones((2, 70, 70), np.float32))
    found, found_large = (side.send(np.ones(each.shape, np.float32)) for each in (half, large))
    for count, call in (
        (0, lambda: cuda.patch_moments(x, Convolution(), (1, 1), out)),
        (0, lambda: cuda.row_moments(x, half)),
        (0, lambda: cuda.products(half, half)),
        (1, lambda: cuda.inverses(half, shifts, found)),
        (3, lambda: cuda.inverses(large, shifts, found_large)),
    ):
        with cuda.counting() as counted:
            call()
        assert counted.kernels == count
