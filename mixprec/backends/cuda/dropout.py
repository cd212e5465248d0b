"""Dropout of elements and of rows on a CUDA device: one launch each."""

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div

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
        self.kernels.launch(_FILE, "next_key", 1, [state, key], _FLOAT)
        return key

    def dropout(self, x, ratio, key):
        return self._elementwise(_FILE, "dropout", [x], key, x.size, int(ratio * 2**32), float(1 - ratio))

    def dropout_next(self, x, ratio, state):
        y, key = self._empty(x.shape, x.dtype), self._empty((2,), np.uint64)
        width = self._width(0, x, y)
        blocks = max(ceil_div(x.size, self.launcher.threads * width), 1)  # the state moves for an empty x, too
        arguments = [x, y, key, state, self.launcher.counters(1), x.size, int(ratio * 2**32), float(1 - ratio)]
        self.kernels.launch(_FILE, "dropout_next", blocks, arguments, x.dtype, width)
        return y, key

    def row_factors(self, count, ratio, key):
        factors = self._empty((count,), _FLOAT)
        arguments = [factors, key, count, int(ratio * 2**32), float(1 - ratio)]
        self.kernels.launch(_FILE, "row_factors", ceil_div(count, self.launcher.threads), arguments, _FLOAT)
        return factors

    def scale_rows(self, x, factors):
        row = x.size // max(len(factors), 1)
        return self._elementwise(_FILE, "scale_rows", [x], factors, x.size, row, length=row)
