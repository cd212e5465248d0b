"""Casts and changes of layout on a CUDA device: one launch each."""

import math

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of

_FILE = "layout"
_FEW = 8  # channels that a thread reads or writes one after the other
_SQUARE = 64  # as in layout.cu


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
