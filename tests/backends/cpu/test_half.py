"""Float16 to float32 and back in blocks: the same bits as NumPy's own casts."""

import contextlib
import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixprec.backends.cpu import blocks
from mixprec.backends.cpu.blocks import Rounding, is_finite, widen_half

SIZE = 1 << 16
# All float16 numbers, from 0 up and then from -0 down; the finite ones; those that are not.
HALVES = np.arange(SIZE, dtype=np.uint16).view(np.float16)
FINITE = HALVES[np.isfinite(HALVES)]
NOT_FINITE = HALVES[~np.isfinite(HALVES)]
BLOCK = st.sampled_from([1, 2, 1023, 1024, 1025, 4096])


def _round(block, size=None):
    out = np.full(block.shape, 7, np.float16)
    Rounding(size or block.size)(block, out)
    return out


def _assert_rounded(block):
    """As NumPy casts it: inf stays, NaN too, whose payload is its own."""
    with np.errstate(over="ignore"):
        expected = block.astype(np.float16)
    np.testing.assert_array_equal(_round(block).view(np.uint16), expected.view(np.uint16))


def _around(values):
    """Float32 numbers and their neighbours on both sides."""
    values = values.astype(np.float32)
    infinity = np.float32(np.inf)
    return np.concatenate([values, np.nextafter(values, infinity), np.nextafter(values, -infinity)])


@pytest.fixture(params=["vectorized", "flushing"])
def processor(request, monkeypatch):
    """Also one that takes subnormal numbers for 0, as far as the guard against it knows."""
    monkeypatch.setattr(blocks, "_flushes_subnormals", lambda: request.param == "flushing")


# --- float16 to float32


def test_widen_every_number(processor):
    out = np.full(FINITE.shape, 7, np.float32)
    widen_half(FINITE, out)
    np.testing.assert_array_equal(out.view(np.uint32), FINITE.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 1023, 1024, 1025, 32768])
def test_widen_blocks_of_every_size_wherever_they_lie(size):
    for start in (0, 1, 3):
        block = FINITE[start : start + size]
        out = np.zeros(size + 5, np.float32)
        widen_half(block, out[start : start + size])
        np.testing.assert_array_equal(out[start : start + size], block.astype(np.float32))
        assert not out[:start].any()
        assert not out[start + size :].any()
        assert len(block) == size


# --- float32 to float16


def test_round_every_float16_number(processor):
    finite = FINITE.astype(np.float32)
    _assert_rounded(finite)
    np.testing.assert_array_equal(_round(finite).view(np.uint16), FINITE.view(np.uint16))
    with np.errstate(invalid="ignore"):
        _assert_rounded(HALVES.astype(np.float32))


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("sign", [1, -1])
def test_round_between_all_neighbours(part, sign, processor):
    """Ties and the float32 numbers next to them, and quarters; up to where inf begins, and from there on."""
    positive = np.append(FINITE[FINITE >= 0], np.float16(0)).astype(np.float64)
    positive[-1] = 65536  # the neighbour that float16 does not have
    positive = np.unique(positive)
    assert len(positive) == 0x7C00 + 1
    between = positive[:-1] + part * np.diff(positive)
    block = sign * _around(between)
    _assert_rounded(block)
    _assert_rounded(block[np.abs(block) < 65520])


EDGES = [
    *((65519.996, 65504), (65520, np.inf), (1e30, np.inf), (np.inf, np.inf), (2.0**-25, 0)),
    *((np.nextafter(np.float32(2.0**-25), np.float32(1)), 2.0**-24), (3 * 2.0**-25, 2.0**-23)),
    *((2.0**-14 - 2.0**-25, 2.0**-14), (1e-45, 0), (0.0, 0.0)),
]


@pytest.mark.parametrize(("value", "expected"), EDGES)
def test_round_at_the_edges(value, expected):
    """The largest number, the smallest, and where subnormal ones begin, in blocks with others or alone."""
    for sign in (1, -1):
        for size in (1, 1024, 2000):
            block = np.full(size, sign * value, np.float32)
            out = _round(block)
            assert (out == sign * expected).all()
            assert (np.signbit(out) == (sign < 0)).all()
            mixed = np.resize(np.array([sign * value, 1, -3.7, 0], np.float32), size)
            _assert_rounded(mixed)


def test_round_nan_with_its_payload():
    """As NumPy keeps it, quiet or not."""
    patterns = np.arange(0x7F800001, 0x80000000, 0x1111, dtype=np.uint32)
    block = np.concatenate([patterns, patterns | np.uint32(0x80000000)]).view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = block.astype(np.float16)
        np.testing.assert_array_equal(_round(block).view(np.uint16), expected.view(np.uint16))


@given(bits=st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=50), size=BLOCK)
def test_round_any_float32_bits(bits, size):
    block = np.resize(np.array(bits, np.uint32), size).view(np.float32)
    with np.errstate(invalid="ignore"):
        _assert_rounded(block)


@pytest.mark.parametrize("size", [0, 1, 7, 1023, 1024, 3000])
def test_one_rounding_for_blocks_of_many_sizes(size):
    rounding = Rounding(4096)
    for block in (np.linspace(-3, 9, 4096, dtype=np.float32), np.linspace(-1e-6, 1e-7, size, dtype=np.float32)):
        out = np.full(len(block) + 2, 7, np.float16)
        before = block.copy()
        rounding(block, out[1:-1])
        np.testing.assert_array_equal(out[1:-1], block.astype(np.float16))
        np.testing.assert_array_equal(block, before)
        assert out[0] == out[-1] == 7


# --- the check


def test_is_finite_of_every_number():
    for value in HALVES[:: 1 << 5]:
        assert is_finite(np.array([value])) == np.isfinite(value)
    assert is_finite(FINITE)
    for value in NOT_FINITE:
        assert not is_finite(np.array([1, value, -1], np.float16))


@pytest.mark.parametrize("at", [0, 1, 16383, 32766, 32767])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
def test_is_finite_of_a_block(bad, at):
    block = FINITE[: 1 << 15].copy()
    assert is_finite(block)
    block[at] = bad
    assert not is_finite(block)
    block[at] = -65504
    assert is_finite(block)


# --- the guard


def test_the_guard_looks_at_the_processor():
    """NumPy computes with subnormal numbers here; what a library with -ffast-math would do to them is known as 0."""
    assert not blocks._flushes_subnormals()


@contextlib.contextmanager
def _flushing(bits):
    """Sets bits of MXCSR, an x86 processor's control register: the last word of C's floating-point environment."""
    libm = ctypes.CDLL("libm.so.6")
    before, inside = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    libm.fegetenv(before)
    inside[:] = before[:]
    inside[7] |= bits
    libm.fesetenv(inside)
    try:
        yield
    finally:
        libm.fesetenv(before)


@pytest.mark.parametrize("bits", [0x8000, 0x0040, 0x8040], ids=["makes 0", "takes for 0", "both"])
def test_a_processor_that_flushes_float32_does_so_with_no_float16(bits):
    out = np.empty(len(FINITE), np.float32)
    with _flushing(bits):
        assert blocks._flushes_subnormals()
        widen_half(FINITE, out)
        rounded = _round(out)
    np.testing.assert_array_equal(out, FINITE.astype(np.float32))
    np.testing.assert_array_equal(rounded.view(np.uint16), FINITE.view(np.uint16))
