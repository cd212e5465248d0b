"""Dropout on NumPy, with random numbers that depend only on key and position."""

import numpy as np

from mixprec.backends.cpu.blocks import narrow_to, widen, widen_to

_BLOCK = 1 << 12  # counters, each of them for four elements
_WORD = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85  # added to the words of the key in each round
_ROUNDS = 10


def philox(counter, key):
    """Returns the four words of Philox4x32-10 for each counter.

    Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3", doi:10.1145/2063384.2063405.

    Args:
        counter: its four words, each a uint64 array with values below 2**32, or one that broadcasts.
        key: its two words, ints below 2**32.

    Returns:
        uint32 (counters, 4).
    """
    a, b, c, d = counter
    key = list(key)
    for _ in range(_ROUNDS):
        of_a, of_c = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (
            (of_c >> _HIGH) ^ b ^ np.uint64(key[0]),
            of_c & _WORD,
            (of_a >> _HIGH) ^ d ^ np.uint64(key[1]),
            of_a & _WORD,
        )
        key = [(word + weyl) & 0xFFFFFFFF for word, weyl in zip(key, _WEYL, strict=True)]
    return np.stack([a, b, c, d], axis=-1).astype(np.uint32)


class Dropouts:
    """The dropout of :class:`~mixprec.backends.primitives.Primitives`."""

    def new_random_state(self, seed):
        """See :meth:`~mixprec.backends.primitives.Primitives.new_random_state`."""
        return np.array([seed, 0], np.uint64)

    def dropout_key(self, state):
        """See :meth:`~mixprec.backends.primitives.Primitives.dropout_key`."""
        key = state.copy()
        state[1] += np.uint64(1)
        return key

    @np.errstate(over="ignore", invalid="ignore")
    def dropout(self, x, ratio, key):
        """See :meth:`~mixprec.backends.primitives.Primitives.dropout`."""
        y = np.empty(x.shape, x.dtype)
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        seed, sequence = map(int, key)
        threshold = np.uint32(ratio * 2**32)
        rest = np.float32(1 - ratio)
        scratch = np.empty(4 * _BLOCK, np.float32)
        for first in range(0, -(-x.size // 4), _BLOCK):
            numbers = np.arange(first, first + _BLOCK, dtype=np.uint64)
            high = np.full_like(numbers, sequence & 0xFFFFFFFF), np.full_like(numbers, sequence >> 32)
            random = philox((numbers & _WORD, numbers >> _HIGH, *high), (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)
            part = slice(4 * first, 4 * (first + _BLOCK))
            block = scratch[: flat_x[part].size]
            widen_to(flat_x[part], block)
            np.divide(block, rest, out=block)
            block[random[: block.size] < threshold] = 0
            narrow_to(block, flat_y[part])
        return y

    def row_factors(self, count, ratio, key):
        """See :meth:`~mixprec.backends.primitives.Primitives.row_factors`."""
        return self.dropout(np.ones(count, np.float32), ratio, key)

    @np.errstate(over="ignore", invalid="ignore")
    def scale_rows(self, x, factors):
        """See :meth:`~mixprec.backends.primitives.Primitives.scale_rows`."""
        y = np.empty(x.shape, x.dtype)
        for n, factor in enumerate(factors):
            narrow_to(widen(x[n : n + 1]) * factor, y[n : n + 1])
        return y
