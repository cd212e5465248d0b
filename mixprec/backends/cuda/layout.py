"""Casts, changes of layout and packed sequences on a CUDA device: one launch each, more for very many sequences."""

import itertools
import math

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of
from mixprec.backends.recurrence import first_rows

_FILE = "layout"
_FEW = 8  # channels that a thread reads or writes one after the other
_SQUARE = 64  # as in layout.cu
_SEQUENCES, _STEPS = 256, 481  # of a launch, as in sequences.cu


class Layouts(Base):
    """The casts of :class:`~mixprec.backends.primitives.Primitives`."""

    def cast(self, x, dtype):
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        y = self._empty(x.shape, dtype)
        width = self._width_of_both(x, y)
        blocks = ceil_div(x.size, self.launcher.threads * width)
        self.kernels.launch(_FILE, "cast", blocks, [x, y, x.size], x.dtype, width, dtype)
        return y

    def to_nhwc(self, x, dtype, channels=None):
        images, own, height, width = x.shape
        channels = max(own, channels or 0)
        y = self._empty((images, height, width, channels), dtype)
        if channels <= _FEW:
            self._one_pixel_each("interleave", x, y, height * width, own, channels, math.gcd(channels, _FEW))
        else:
            self._transpose(x, y, own, height * width, height * width, channels)
        return y

    def to_nchw(self, x, dtype, channels=None):
        images, height, width, own = x.shape
        channels = own if channels is None else min(channels, own)
        y = self._empty((images, channels, height, width), dtype)
        if own <= _FEW:
            self._one_pixel_each("separate", x, y, height * width, own, channels, 1)
        else:
            self._transpose(x, y, height * width, own, channels, height * width)
        return y

    def _one_pixel_each(self, name, x, y, pixels, x_channels, y_channels, width):
        of_image = ceil_div(pixels, self.launcher.threads)
        arguments = [x, y, of_image, pixels, x_channels, y_channels]
        self.kernels.launch(_FILE, name, len(x) * of_image, arguments, x.dtype, width, y.dtype)

    def _width_of_both(self, x, y):
        return width_of(0, [x.dtype, y.dtype], map(self._address, (x, y)))

    def _transpose(self, x, y, rows, x_columns, columns, y_rows):
        width = self._width_of_both(x, y)
        down, across = ceil_div(y_rows, _SQUARE), ceil_div(columns, _SQUARE)
        arguments = [x, y, down, across, rows, x_columns, columns, y_rows]
        arguments += [int(x_columns % width == 0), int(y_rows % width == 0)]
        self.kernels.launch(_FILE, "transpose", len(x) * down * across, arguments, x.dtype, width, y.dtype)


class Sequences(Base):
    """The packed sequences of :class:`~mixprec.backends.primitives.Primitives`."""

    def pack_sequences(self, xs, order):
        xs = [xs[index] for index in order]
        firsts = first_rows(list(map(len, xs)))
        packed = self._empty((int(firsts[-1]), xs[0].shape[1]), xs[0].dtype)
        self._copy("pack", xs, packed, firsts)
        return packed

    def unpack_sequences(self, packed, lengths, order):
        ends, whole = itertools.accumulate(lengths), self._empty(packed.shape, packed.dtype)
        xs = [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        self._copy("unpack", [xs[index] for index in order], packed, first_rows([lengths[index] for index in order]))
        return xs

    def _copy(self, name, xs, packed, firsts):
        """Launches a kernel for sequences by falling length, of which step t has the rows from ``firsts[t]`` on."""
        channels = packed.shape[1]
        width = self._width(channels, packed, *xs)
        addresses = np.array(list(map(self._address, xs)))
        for step in range(0, len(firsts) - 1, _STEPS):
            of_launch = firsts[step : step + _STEPS + 1]
            blocks = ceil_div(int(of_launch[-1] - of_launch[0]) * (channels // width), self.launcher.threads)
            for first in range(0, int(of_launch[1] - of_launch[0]), _SEQUENCES):
                table, own = np.zeros(_SEQUENCES + (_STEPS + 1) // 2, np.int64), addresses[first : first + _SEQUENCES]
                table[: len(own)] = own + step * channels * packed.itemsize
                table[_SEQUENCES:].view(np.uint32)[: len(of_launch)] = of_launch
                arguments = [table, len(of_launch) - 1, packed, channels // width, first, len(own)]
                self.kernels.launch("sequences", name, blocks, arguments, packed.dtype, width)
