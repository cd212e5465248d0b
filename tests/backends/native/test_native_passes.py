"""The native library computes bit for bit what NumPy does, with AVX2 and AVX-512, on some threads."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mixprec.backends import cpu
from mixprec.backends.cpu import native_primitives as native
from mixprec.backends.cpu.batch_norm import Affine
from mixprec.backends.geometry import BatchNorm, Convolution, Normalized, Pooling
from mixprec.backends.primitives import Primitives
from mixprec.native.native_library import library, raw
from tests.backends.primitive_cases import BFLOAT16, FLOAT32, STORAGE, arrays, exact

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native library")

# (N, H, W, C): channels narrower than a vector, of some vectors and a part, and of some chunks of a sum.
SHAPES = [(3, 7, 5, 1), (2, 9, 6, 3), (2, 3, 5, 16), (1, 13, 11, 33), (2, 5, 7, 64), (5, 17, 9, 70), (2, 4, 3, 520)]
POOLINGS = [
    Pooling((3, 3), (2, 2), (1, 1), cover_all=True),
    Pooling((2, 3), (1, 2)),
    Pooling((3, 3), (1, 1), (2, 2)),
    Pooling((1, 2), (3, 3)),
]
KEY = np.array([0xFEDCBA9876543210, 0x0123456789ABCDEF], np.uint64)
ODD = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, 3e-6)


def _arrays(shape, dtype, count):
    """Returns arrays with numbers that are equal, and odd ones."""
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        found = (arrays(rng, (count, *shape), np.float64) * 4).round(1).astype(dtype)
        found.reshape(-1)[rng.integers(0, found.size, found.size // 9)] = np.array(rng.choice(ODD), dtype)
        found.reshape(-1)[: len(ODD)] = np.array(ODD, dtype)
    return found


def _bits(array):
    """Returns an array with one NaN for all, as integers."""
    if array is None or array.dtype.kind in "bu":
        return array
    array = array.copy()
    array[np.isnan(exact(array))] = np.nan
    return array.view(f"i{array.itemsize}")


def _assert_same(compute):
    """Asserts that both primitives return the same bits."""
    with np.errstate(all="ignore"):
        expected, found = ([*map(_bits, compute(primitives))] for primitives in (cpu.PRIMITIVES, native.PRIMITIVES))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_of_normalizations(shape, dtype):
    x, add = _arrays(shape, dtype, 2)
    affine = Affine(*arrays(np.random.default_rng(1), (2, shape[-1]), np.float32))
    _assert_same(lambda p: p.apply_affine(x, affine, True)[:1])
    _assert_same(lambda p: p.apply_affine(x, affine, True, add, keep_mask=True))
    _assert_same(lambda p: [p.add_bias(x, affine.bias.astype(dtype))])


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize(("relu", "add"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_normalizations(shape, dtype, relu, add, plus):
    """The sums are not the same bits: dx is, of the same sums."""
    x, dy, other = _arrays(shape, dtype, 3)
    rng = np.random.default_rng(1)
    mean, scale, bias, slope, offset = arrays(rng, (5, shape[-1]), np.float32)
    mask = rng.random(shape) < 0.5 if relu and add else None

    def gradients(p):
        g, *_ = p._reduce(dy, other if plus else None, x, mean, Affine(scale, bias), relu, add, mask)
        scaled = p._scaled(g, x, scale)
        kept = g.copy() if add else None
        return p._combine(g, scale, x, mean, slope, offset, reuse=relu and not add), scaled, kept

    _assert_same(gradients)


def _dual(p, shape, dtype, relu, plus):
    """Returns outputs and gradients of two normalizations that are added."""
    rng = np.random.default_rng(2)
    (*inputs, dy, more), vectors = arrays(rng, (4, *shape), dtype), arrays(rng, (2, 4, shape[-1]), np.float32)
    one, other = (
        Normalized(x, gamma, beta, tuple(running), BatchNorm(relu=follows))
        for x, (gamma, beta, *running), follows in zip(inputs, vectors, (relu, False), strict=True)
    )
    y, saved = p.dual_batch_norm(one, other)
    *both, g = p.dual_batch_norm_backward(dy, one, other, saved, plus=more if plus else None)
    return [y, saved[0].mask, *saved[0][:2], *saved[1][:2], *both[0], *both[1], g, vectors]


@pytest.mark.parametrize(("relu", "plus"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 50, 40, 64)])
def test_two_normalizations_at_once_are_those_one_by_one(shape, dtype, relu, plus):
    class OneByOne(native.Native):
        dual_batch_norm = Primitives.dual_batch_norm
        dual_batch_norm_backward = Primitives.dual_batch_norm_backward

    found, expected = (_dual(p, shape, dtype, relu, plus) for p in (native.PRIMITIVES, OneByOne()))
    for one, same in zip(found, expected, strict=True):
        np.testing.assert_array_equal(_bits(one), _bits(same))


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_added_is_rounded(shape, dtype):
    x, added, y = _arrays(shape, dtype, 3)
    affine, of_added = arrays(np.random.default_rng(1), (2, 2, shape[-1]), np.float32)
    library().affine(raw(x), shape[-1], *affine, raw(added), *of_added, 1, None, raw(y))
    with np.errstate(all="ignore"):
        added, _ = cpu.PRIMITIVES.apply_affine(added, Affine(*of_added), False)
        expected, _ = cpu.PRIMITIVES.apply_affine(x, Affine(*affine), True, added)
    np.testing.assert_array_equal(_bits(y), _bits(expected))


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings(pooling, shape, dtype):
    (x,) = _arrays(shape, dtype, 1)
    _assert_same(lambda p: p.max_pool(x, pooling))
    y, where = cpu.PRIMITIVES.max_pool(x, pooling)
    _assert_same(lambda p: [p.max_pool_backward(y, where, pooling, shape)])
    if not pooling.cover_all:
        _assert_same(lambda p: [p.average_pool(x, pooling), p.average_pool_backward(y, pooling, shape)])


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("shape", SHAPES)
def test_elements_and_layouts(shape, dtype):
    x, dy = _arrays(shape, dtype, 2)
    _assert_same(lambda p: [p.relu(x), p.relu_backward(dy, x), p.add(x, dy)])
    _assert_same(lambda p: [p.dropout(x, ratio, KEY) for ratio in (0.0, 0.3, 1 - 2.0**-32)])
    for to in STORAGE:
        _assert_same(lambda p, to=to: [p.to_nhwc(x, to), p.to_nhwc(x, to, shape[1] + 5), p.to_nchw(x, to, 2)])


@pytest.mark.parametrize("dtype", STORAGE)
def test_a_change_of_layout_keeps_all_bits(dtype):
    x = np.random.default_rng(0).integers(0, 256, (2, 9, 6, 35 * dtype.itemsize), np.uint8).view(dtype)
    x.view(f"u{dtype.itemsize}")[:, ::2] |= np.array(np.inf, dtype).view(f"u{dtype.itemsize}")  # NaN of all kinds
    for p in (cpu.PRIMITIVES, native.PRIMITIVES):
        assert p.to_nhwc(x, dtype).tobytes() == x.transpose(0, 2, 3, 1).tobytes()
        assert p.to_nchw(x, dtype).tobytes() == x.transpose(0, 3, 1, 2).tobytes()


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("channels", [5, 64])
def test_a_relu_makes_0_of_negative_zeros(dtype, channels):
    """In all functions that have one: -0.0 and NaN in, 0.0 and NaN out."""
    x = np.full((2, 3, 5, channels), -0.0, dtype)
    x[0, 0, 0] = np.nan
    w = np.eye(channels, dtype=dtype)[:, None, None]
    scale, bias = np.ones(channels, np.float32), np.full(channels, -0.0, np.float32)
    affine, convolution = Affine(scale, bias), Convolution()

    def outputs(p):
        attributes = BatchNorm(relu=True)
        mean, variance = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        return [
            p.relu(x),
            p.apply_affine(x, affine, True)[0],
            p.apply_affine(x, affine, True, x, keep_mask=True)[0],
            p.batch_norm_inference(x, scale, bias, mean, variance, attributes),
            p.batch_norm_inference(x, scale, bias, mean, variance, attributes, add=x),
            p.conv_fprop(x, w, convolution, bias.astype(dtype), relu=True),
            p.conv_fprop(x, -w, convolution, relu=True),
        ]

    _assert_same(outputs)
    for y in outputs(native.PRIMITIVES):
        assert not np.signbit(exact(y)[1]).any()
        assert np.isnan(exact(y)[0, 0, 0]).all()


def _digests():
    """Returns digests of results that are sums, and so depend on their order."""
    found = {}
    for dtype in (FLOAT32, BFLOAT16):
        for channels in (3, 64, 600):
            x, dy = arrays(np.random.default_rng(0), (2, 4, 15_000 // channels, 7, channels), dtype)
            gamma, beta = np.ones((2, channels), np.float32)
            attributes = BatchNorm(relu=True)
            y, saved = native.PRIMITIVES.batch_norm(x, gamma, beta, None, attributes)
            results = (
                *(y, saved.mean, saved.invstd, native.PRIMITIVES.bias_grad(dy, FLOAT32)),
                *native.PRIMITIVES.batch_norm_backward(dy, x, gamma, beta, saved, attributes)[:3],
                *native.PRIMITIVES.max_pool(x, POOLINGS[0]),
                native.PRIMITIVES.global_average_pool(x),
                native.PRIMITIVES.dropout(x, 0.3, KEY),
                native.PRIMITIVES.to_nchw(x, FLOAT32),
                *_dual(native.PRIMITIVES, x.shape, dtype, True, True),
            )
            found[f"{dtype} {channels}"] = [hashlib.sha256(each.tobytes()).hexdigest() for each in results]
    return found


def test_the_same_bits_on_all_threads_and_instructions():
    before = library().threads()
    try:
        library().set_threads(1)
        expected = _digests()
        library().set_threads(3)
        assert _digests() == expected
    finally:
        library().set_threads(before)
    program = (
        "import json; from tests.backends.native.test_native_passes import _digests; print(json.dumps(_digests()))"
    )
    environment = {**os.environ, "MIXPREC_NATIVE": "avx2"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == expected
