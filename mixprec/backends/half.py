"""Float16 to float32 and back on NumPy, in a fifth of the time that NumPy's own casts take.

NumPy (2.5) converts one element at a time, with branches. Here whole blocks go through integer and float32 operations,
which it vectorizes. The results are the same bit for bit. Blocks should fit into a processor's second-level cache.
"""

import numpy as np

_SIGN = np.int32(-0x8000)  # the sign bit of float16, and what lies above it
_EXPONENT = np.int32(0x7F800000)
_SIGN_AND_MAGNITUDE = np.int32(-0x70000001)  # float32 without the three highest bits of the exponent
_BIAS = np.float32(2.0**112)  # between the exponents of float16 and float32: 127 - 15
LARGEST_FACTOR = 2.0**15  # that widen() can multiply by
_FEW = 1024  # so many elements NumPy converts in less time than the calls take here
_SMALL, _FRACTION = np.float32(2.0**-120), np.float32(2.0**-20)
_LARGEST = np.float32(65520.0)  # from here on float16 has only inf
_INF16, _MINUS_INF16 = 0x7C00, 0xFC00


def is_finite(block):
    """Whether all elements of a float16 array of one dimension are finite."""
    return bool(
        np.maximum.reduce(block.view(np.int16)) < _INF16 and np.maximum.reduce(block.view(np.uint16)) < _MINUS_INF16
    )


def widen(block, out, inverse=1.0):
    """Writes ``block * inverse`` to ``out``, rounded once.

    Args:
        block: finite float16 array of one dimension.
        out: float32 array of the same shape.
        inverse: a power of two, at most :data:`LARGEST_FACTOR`.
    """
    if block.size < _FEW or _flushes_subnormals():
        np.multiply(block, np.float32(inverse), out=out)
        return
    bits = out.view(np.int32)
    np.copyto(bits, block.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _SIGN_AND_MAGNITUDE, out=bits)
    # The exponent is now too small by 112, also that of a subnormal number, which float32 has as one of its own.
    np.multiply(out, _BIAS * np.float32(inverse), out=out)


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
        # The reverse of widen(), without another rounding; the sign is that of the block, as -0.0 has lost it here.
        np.multiply(rounded, 1 / _BIAS, out=rounded)
        bits, sign = rounded.view(np.int32), magic.view(np.int32)
        np.right_shift(bits, 13, out=bits)
        np.right_shift(block.view(np.int32), 16, out=sign)
        np.bitwise_and(sign, _SIGN, out=sign)
        np.bitwise_or(bits, sign, out=bits)
        np.copyto(out.view(np.int16), bits, casting="unsafe")


def _flushes_subnormals():
    """Whether the processor takes subnormal float32 numbers for 0, or makes them 0.

    Libraries built with -ffast-math switch both on, others one of the two.
    """
    return _SMALL * _FRACTION * _BIAS == 0
