"""Casts and changes of layout on a CUDA device: one launch each, as long as there are not too many arrays."""

import math

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of
from mixprec.backends.recurrence import first_rows

_FILE = "layout"
_FEW = 8  # channels that a thread reads or writes one after the other
_SQUARE = 64  # as in layout.cu
_ARRAYS, _PIECES = 256, 481  # of a launch, as in sequences.cu


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
    """The changes of rows of :class:`~mixprec.backends.primitives.Primitives`."""

    def join_rows(self, arrays):
        firsts = np.concatenate([[0], np.cumsum(list(map(len, arrays)))])
        whole = self._empty((int(firsts[-1]), *arrays[0].shape[1:]), arrays[0].dtype)
        for start in range(0, len(arrays), _ARRAYS):
            part = arrays[start : start + _ARRAYS]
            self._copy_rows(part, list(map(self._address, part)), firsts[start : start + len(part) + 1], whole, 0, 0, 0)
        return whole

    def pack_sequences(self, xs, order):
        xs = [xs[index] for index in order]
        firsts = first_rows(list(map(len, xs)))
        packed = self._empty((int(firsts[-1]), xs[0].shape[1]), xs[0].dtype)
        self._copy_sequences(xs, firsts, packed, 0)
        return packed

    def unpack_sequences(self, packed, lengths, order):
        ends = np.cumsum(lengths).tolist()
        whole = self._empty(packed.shape, packed.dtype)
        xs = [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        xs_in_order = [xs[index] for index in order]
        self._copy_sequences(xs_in_order, first_rows(list(map(len, xs_in_order))), packed, 1)
        return xs

    def _copy_sequences(self, xs, firsts, packed, back):
        step = packed.shape[1] * packed.itemsize  # bytes
        for start in range(0, len(firsts) - 1, _PIECES):
            part = firsts[start : start + _PIECES + 1]
            for first in range(0, int(part[1] - part[0]), _ARRAYS):
                own = xs[first : first + _ARRAYS]
                addresses = [self._address(x) + start * step for x in own]
                self._copy_rows(own, addresses, part, packed, 1, first, back)

    def _copy_rows(self, arrays, addresses, firsts, whole, by_step, first, back):
        """Copies rows of arrays into one, or back; the arguments after ``whole`` are as of ``copy_rows``.

        Args:
            arrays: the arrays of the launch.
            addresses: of their first elements, or of later rows.
            firsts: the first row in ``whole`` of each piece, and its end.
        """
        table = np.zeros(_ARRAYS + (_PIECES + 1) // 2, np.int64)
        table[: len(addresses)] = addresses
        table[_ARRAYS:].view(np.uint32)[: len(firsts)] = firsts
        size = math.prod(whole.shape[1:])
        width = self._width(size, whole, *arrays)
        blocks = ceil_div(int(firsts[-1] - firsts[0]) * (size // width), self.launcher.threads)
        numbers = [len(firsts) - 1, whole, size // width, by_step, first, len(arrays), back]
        self.kernels.launch("sequences", "copy_rows", blocks, [table, *numbers], whole.dtype, width)
