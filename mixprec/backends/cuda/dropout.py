"""Dropout of elements and of rows on a CUDA device: one launch each."""

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of

_FILE = "dropout"
_FLOAT = np.dtype(np.float32)


class Dropouts(Base):
    """The dropout of :class:`~mixprec.backends.primitives.Primitives`; the state moves on the device."""

    def new_random_state(self, seed):
        state = self.launcher.full((2,), np.uint64(seed), np.uint64)
        self.launcher.zero(state[1:])
        return state

    def dropout_key(self, state):
        key = self._empty((2,), np.uint64)
        arguments = [self._address(state), self._address(key)]
        self.kernels.launch(_FILE, "next_key", 1, arguments, _FLOAT)
        return key

    def dropout(self, x, ratio, key):
        y = self._empty(x.shape, x.dtype)
        addresses = [self._address(x), self._address(y)]
        width = width_of(0, [x.dtype], addresses)
        arguments = [*addresses, self._address(key), x.size, int(ratio * 2**32), float(1 - ratio)]
        self.kernels.launch(
            _FILE, "dropout", ceil_div(x.size, self.launcher.threads * width), arguments, x.dtype, width
        )
        return y

    def row_factors(self, count, ratio, key):
        factors = self._empty((count,), _FLOAT)
        arguments = [self._address(factors), self._address(key), count, int(ratio * 2**32), float(1 - ratio)]
        self.kernels.launch(_FILE, "row_factors", ceil_div(count, self.launcher.threads), arguments, _FLOAT)
        return factors

    def scale_rows(self, x, factors):
        y = self._empty(x.shape, x.dtype)
        if not x.size:
            return y
        row = x.size // len(factors)
        addresses = [self._address(x), self._address(y)]
        width = width_of(row, [x.dtype], addresses)
        arguments = [*addresses, self._address(factors), x.size, row]
        blocks = ceil_div(x.size, self.launcher.threads * width)
        self.kernels.launch(_FILE, "scale_rows", blocks, arguments, x.dtype, width)
        return y
