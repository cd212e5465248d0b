"""Additions, biases and mixed images on a CUDA device: one launch each."""

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div, rows_of
from mixprec.backends.cuda.columns import SUMMED_ROWS, SUMMING_BLOCKS, Columns


class Additions(Base):
    """The addition of :class:`~mixprec.backends.primitives.Primitives`."""

    def add(self, a, b):
        return self._elementwise("addition", "add", [a, b], a.size)


class Biases(Columns):
    """The biases of :class:`~mixprec.backends.primitives.Primitives`."""

    def bias_grad(self, dy, dtype):
        rows, channels = rows_of(dy)
        sums = self._empty((channels,), dtype)
        blocks = self._summing(rows, 1, channels, dy, sums)
        parts = min(ceil_div(rows, blocks.step * SUMMED_ROWS), SUMMING_BLOCKS // max(blocks.tiles, 1))
        of_part = ceil_div(ceil_div(rows, max(parts, 1)), blocks.step) * blocks.step
        parts = max(ceil_div(rows, max(of_part, 1)), 1)
        partial, counters = None, 0
        if parts > 1:
            partial, counters = self._empty((parts, channels), np.float32), self.launcher.counters(blocks.tiles)
        before = [dy, sums, partial, counters, rows]
        self._run_columns("sum_rows", parts * blocks.tiles, before, blocks, [of_part, parts], dy.dtype, sums.dtype)
        return sums

    def add_bias(self, x, b):
        rows, channels = rows_of(x)
        y = self._empty(x.shape, x.dtype)
        blocks = self._blocks(channels, x, y, b)
        of_block = blocks.rows_to_write(rows)
        count = ceil_div(rows, of_block) * blocks.tiles
        self._run_columns("add_row", count, [x, b, y, rows], blocks, [of_block], x.dtype, b.dtype)
        return y


class Mixtures(Base):
    """The mixed images of :class:`~mixprec.backends.primitives.Primitives`."""

    def mix_images(self, x, share, box):
        y = self._empty(x.shape, x.dtype)
        size = x.size // max(len(x), 1)
        width = self._width(size, x, y)
        of_image = ceil_div(size, self.launcher.threads * width)
        arguments = [x, y, len(x), of_image, *x.shape[1:], *map(int, box), float(share)]
        self.kernels.launch("mixtures", "mix_images", len(x) * of_image, arguments, x.dtype, width)
        return y
