"""Rows of tables on a CUDA device, and their gradients: one launch each, and zeros for the gradient of a table."""

import math

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import ACCESS

_FILE = "embedding"
_PARTS = 240  # of a launch, as in the kernel
_UNITS = {ACCESS: (np.float32, 4), 4: (np.float32, 1), 2: (np.float16, 1)}  # bytes: dtype and width


class Embeddings(Base):
    """The primitives of :class:`~mixprec.backends.primitives.Primitives` that choose and join rows."""

    def concat_rows(self, arrays):
        y = self._empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
        addresses, target = list(map(self._address, arrays)), self._address(y)
        sizes = [math.prod(array.shape) * array.dtype.itemsize for array in arrays]
        unit = math.gcd(ACCESS, target, *addresses, *sizes)
        unit = unit if unit in _UNITS else min(unit, 4)
        dtype, width = _UNITS[unit]
        for first in range(0, len(arrays), _PARTS):
            part = slice(first, first + _PARTS)
            table, units = np.zeros((_PARTS, 2), np.int64), [size // unit for size in sizes[part]]
            table[: len(units), 0] = addresses[part]
            table[1 : len(units), 1] = np.cumsum(units[:-1])
            blocks = ceil_div(sum(units), self.launcher.threads)
            arguments = [table, len(units), target, sum(units)]
            self.kernels.launch(_FILE, "concat_rows", blocks, arguments, np.dtype(dtype), width)
            target += sum(units) * unit
        return y

    def embed(self, w, t, ignore_label=None):
        y = self._empty((*t.shape, w.shape[1]), w.dtype)
        width = self._width(w.shape[1], w, y)
        blocks = ceil_div(math.prod(y.shape), self.launcher.threads * width)
        self._launch("embed", blocks, [w, t, y, math.prod(y.shape), *w.shape[::-1]], t, ignore_label, w.dtype, width)
        return y

    def embed_backward(self, dy, t, rows, ignore_label=None):
        dw = self.launcher.full((rows, dy.shape[1]), 0, f"u{dy.dtype.itemsize}").view(dy.dtype)
        arguments, width = [dy, t, dw, len(t), dy.shape[1], rows], self._width(dy.shape[1], dy, dw)
        self._launch("embed_backward", len(t) if dy.shape[1] else 0, arguments, t, ignore_label, dy.dtype, width)
        return dw

    def _launch(self, name, blocks, arguments, t, ignore_label, dtype, width):
        ignored = [int(ignore_label is not None), int(ignore_label or 0)]
        macros = (("LABEL_WORDS", t.dtype.itemsize // 4),)
        self.kernels.launch(_FILE, name, blocks, [*arguments, *ignored], dtype, width, macros=macros)
