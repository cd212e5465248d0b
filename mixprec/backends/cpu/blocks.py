"""Blocks: the primitives on NumPy convert from the storage dtype to float32 and back one part of an array at a time.

Float16 to float32 and back takes a fifth of the time of NumPy's own casts, which (2.5) convert one element at a time,
with branches. Here whole blocks go through integer and float32 operations, which NumPy vectorizes; the results are the
same bit for bit.

:class:`Rows` walks over arrays (..., C), for all that is computed per channel. NumPy repeats a row of C elements over a
block in three times the time that it takes for two blocks of the same size, so a vector per channel is repeated once,
to a block. Sums over rows are matrix products with ones.
"""

import math
import threading

import numpy as np

from mixprec.native.native_library import is_stored, library, raw

BLOCK = 1 << 15  # elements: a block of float32, with what is computed from it, fits the second-level cache
_LONGEST_SUM = 4096  # rows whose sum is taken in float32
_WIDE = (np.dtype(np.float32), np.dtype(np.float64))
_SIGN = np.int32(-0x8000)  # the sign bit of float16, and all bits above it
_EXPONENT = np.int32(0x7F800000)
_SIGN_AND_MAGNITUDE = np.int32(-0x70000001)  # float32 without the three highest bits of the exponent
_BIAS = np.float32(2.0**112)  # between the exponents of float16 and float32: 127 - 15
_FEW = 1024  # NumPy converts this many elements in less time than the calls here take
_SMALL, _FRACTION = np.float32(2.0**-120), np.float32(2.0**-20)
_LARGEST = np.float32(65520.0)  # from here on float16 has only inf
_INF16, _MINUS_INF16 = 0x7C00, 0xFC00


def is_finite(block):
    """Whether all elements of a float16 array of one dimension are finite."""
    return bool(
        np.maximum.reduce(block.view(np.int16)) < _INF16 and np.maximum.reduce(block.view(np.uint16)) < _MINUS_INF16
    )


def widen_half(block, out):
    """Writes ``block`` to ``out``, exactly.

    Args:
        block: finite float16 array of one dimension.
        out: float32 array of the same shape.
    """
    if block.size < _FEW or _flushes_subnormals():
        np.copyto(out, block)
        return
    bits = out.view(np.int32)
    np.copyto(bits, block.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _SIGN_AND_MAGNITUDE, out=bits)
    # The exponent is now too small by 112, also for subnormal numbers, which are subnormal in float32, too.
    np.multiply(out, _BIAS, out=out)


class Rounding:
    """Rounds float32 to float16, to nearest, ties to even.

    Args:
        size: largest number of elements of a block.
    """

    def __init__(self, size):
        self._smallest = np.full(size, 2.0**-14, np.float32)  # as an array: NumPy does not vectorize it as a number
        self._magic = np.empty(size, np.float32)
        self._rounded = np.empty(size, np.float32)

    def __call__(self, block, out):
        """Writes ``block``, a float32 array of one dimension, to the float16 array ``out``."""
        if block.size < _FEW:
            with np.errstate(over="ignore"):
                out[...] = block
            return
        # Neither comparison holds for NaN.
        in_range = np.maximum.reduce(block) < _LARGEST and np.minimum.reduce(block) > -_LARGEST
        if not in_range or _flushes_subnormals():
            with np.errstate(over="ignore"):
                out[...] = block
            return
        magic, rounded = self._magic[: block.size], self._rounded[: block.size]
        # For 2^e <= |x| < 2^(e+1) float16 has steps of 2^(e-10), and so has float32 around 1.5 * 2^(e+13). An addition
        # rounds to these steps; below 2^-14 they get no smaller.
        np.bitwise_and(block.view(np.int32), _EXPONENT, out=magic.view(np.int32))
        np.maximum(magic, self._smallest[: block.size], out=magic)
        np.multiply(magic, np.float32(1.5 * 2.0**13), out=magic)
        np.add(block, magic, out=rounded)
        np.subtract(rounded, magic, out=rounded)
        # The reverse of widen_half(), without another rounding; the sign comes from the block: -0.0 has lost it here.
        np.multiply(rounded, 1 / _BIAS, out=rounded)
        bits, sign = rounded.view(np.int32), magic.view(np.int32)
        np.right_shift(bits, 13, out=bits)
        np.right_shift(block.view(np.int32), 16, out=sign)
        np.bitwise_and(sign, _SIGN, out=sign)
        np.bitwise_or(bits, sign, out=bits)
        np.copyto(out.view(np.int16), bits, casting="unsafe")


def _flushes_subnormals():
    """Whether the processor treats subnormal float32 numbers as 0, or flushes them to 0.

    Libraries built with -ffast-math switch both on, others one of the two.
    """
    return _SMALL * _FRACTION * _BIAS == 0


class _Scratch(threading.local):
    """Memory for rounding to float16, separate for each thread."""

    def __init__(self):
        self.rounding = Rounding(BLOCK)


_SCRATCH = _Scratch()


def widen(x):
    """Returns an array as float32, exactly; float32 and float64 as they are, without a copy.

    Args:
        x: float16, bfloat16, float32 or float64, any shape.
    """
    if x.dtype in _WIDE:
        return x
    out = np.empty(x.shape, np.float32)
    widen_to(x, out)
    return out


def narrow(x, dtype):
    """Returns a float32 array rounded to nearest even; ``x`` itself if it has the dtype. Overflow gives inf.

    Args:
        x: float32, any shape.
        dtype: float16, bfloat16 or float32.
    """
    if x.dtype == dtype:
        return x
    out = np.empty(x.shape, dtype)
    narrow_to(x, out)
    return out


def widen_to(x, out):
    """Writes an array of any storage dtype to a C-contiguous float32 array of the same shape."""
    if _library_converts(x, out):
        library().convert(raw(x), raw(out))
        return
    if x.dtype != np.float16:
        np.copyto(out, x)
        return
    for source, target in _blocks(x, out):
        if is_finite(source):
            widen_half(source, target)
        else:
            with np.errstate(invalid="ignore"):  # a signalling NaN
                np.copyto(target, source)


def narrow_to(x, out):
    """Rounds a float32 array into a C-contiguous array of the same shape and any storage dtype."""
    if _library_converts(x, out):
        library().convert(raw(x), raw(out))
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if out.dtype != np.float16:
            np.copyto(out, x, casting="unsafe")
            return
        for source, target in _blocks(x, out):
            _SCRATCH.rounding(source, target)


def _library_converts(x, out):
    if library() is None or not (is_stored(x.dtype) and is_stored(out.dtype)):
        return False
    return out.flags.c_contiguous and out.flags.aligned  # raw() would be a copy


def _blocks(source, target):
    """Yields parts of two arrays of the same shape, flat."""
    source, target = source.reshape(-1), target.reshape(-1)
    for start in range(0, source.size, BLOCK):
        yield source[start : start + BLOCK], target[start : start + BLOCK]


class Rows:
    """Walks over arrays of one shape.

    Args:
        shape: (..., C).

    Attributes:
        channels: C.
        count: number of rows.
    """

    def __init__(self, shape):
        self.channels = shape[-1]
        self.count = math.prod(shape[:-1])
        self._rows = max(min(BLOCK // max(self.channels, 1), _LONGEST_SUM, self.count), 1)
        self._ones = np.ones(self._rows, np.float32)

    def blocks(self):
        """Yields slices of flat arrays."""
        step = self._rows * self.channels
        size = self.count * self.channels
        for start in range(0, size, step or 1):
            yield slice(start, min(start + step, size))

    def mapped(self, x, compute):
        """Returns an array like ``x``, each block of it written by ``compute(block, out)``, both flat and float32."""
        y, scratch = np.empty(x.shape, x.dtype), self.scratch()
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        for part in self.blocks():
            block, out = read(flat_x, part, scratch), target(flat_y, part, scratch)
            compute(block, out)
            write(flat_y, part, out)
        return y

    def scratch(self, dtype=np.float32):
        """Returns an uninitialized flat array, one block long."""
        return np.empty(self._rows * self.channels, dtype)

    def repeat(self, vector):
        """Returns a vector (C,) repeated to a block, float32."""
        return np.tile(np.asarray(vector, np.float32), self._rows)

    def sum(self, block):
        """Returns the sum (C,) of the rows of a flat float32 block, float32."""
        block = self.matrix(block)
        return self._ones[: len(block)] @ block

    def matrix(self, block):
        """Returns a view (rows, C) of a flat block."""
        return block.reshape(-1, self.channels)


def read(array, part, scratch):
    """Returns a part of a flat array as float32: itself, if that is its dtype, otherwise widened into scratch."""
    source = array[part]
    if source.dtype == np.float32:
        return source
    out = scratch[: source.size]
    widen_to(source, out)
    return out


def target(array, part, scratch):
    """Returns a float32 array to compute a part of a flat array in: that part itself, or scratch."""
    return array[part] if array.dtype == np.float32 else scratch[: part.stop - part.start]


def write(array, part, block):
    """Rounds the contents of :func:`target` into the part."""
    if array.dtype != np.float32:
        narrow_to(block, array[part])


class Casts:
    """The casts and changes of layout of :class:`~mixprec.backends.primitives.Primitives`."""

    def cast(self, x, dtype):
        """See :meth:`~mixprec.backends.primitives.Primitives.cast`."""
        return x if x.dtype == dtype else narrow(widen(x), dtype)

    def to_nhwc(self, x, dtype, channels=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.to_nhwc`."""
        images, own, height, width = x.shape
        y = np.empty((images, height, width, max(own, channels or 0)), dtype)
        y[..., :own] = self.cast(x, dtype).transpose(0, 2, 3, 1)
        y[..., own:] = 0
        return y

    def to_nchw(self, x, dtype, channels=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.to_nchw`."""
        kept = x.shape[3] if channels is None else min(channels, x.shape[3])
        return self.cast(x, dtype)[..., :kept].transpose(0, 3, 1, 2).copy()
