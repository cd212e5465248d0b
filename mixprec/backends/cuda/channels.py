"""Padding of channels with zeros, for engines that support only some numbers of channels."""

from mixprec.backends.cuda.base import ceil_div, rows_of
from mixprec.backends.cuda.candidates import Candidates
from mixprec.base.announcements import announce

_MULTIPLE = 8  # of channels, which every engine takes


class Channels(Candidates):
    """Adds and removes channels."""

    def _resized(self, array, shape):
        """Returns an array with more or fewer channels and filters; new ones are zeros.

        Args:
            array: (..., C).
            shape: the new one. Only first and last axis may differ, the first only of filters (K, R, S, C).
        """
        if array.shape == shape:
            return array
        target = self._empty(shape, array.dtype)
        (rows, channels), (source_rows, source_channels) = rows_of(target), rows_of(array)
        width = self._width(channels, target)
        arguments = [array, source_rows, source_channels, target, rows, channels]
        blocks = ceil_div(target.size, self.launcher.threads * width)
        self.kernels.launch("convolution", "resize_channels", blocks, arguments, array.dtype, width=width)
        return target

    def _as_wide_as(self, channels, w, convolution):
        """Returns a filter with zeros for channels that only the input of the convolution has."""
        if w.shape[3] == channels or convolution.groups > 1:
            return w
        return self._resized(w, (*w.shape[:3], channels))

    def _padding(self, ask, images, filter_shape, groups):
        """Returns padded shapes for which there is an engine, and announces that.

        Args:
            ask: function of ``(images, filter_shape)`` that returns an operation.
            images: list of shapes.
            filter_shape: (K, R, S, C).
            groups: number of groups of the convolution; several groups cannot be padded.

        Returns:
            ``(images, filter_shape)``

        Raises:
            NoEngine: more channels do not help.
        """
        padded = tuple((*shape[:3], _rounded_up(shape[3])) for shape in images)
        padded_filter = _rounded_up(filter_shape[0]), *filter_shape[1:3], _rounded_up(filter_shape[3])
        operation = ask(images, filter_shape)
        if groups > 1 or not self._cudnn().supports(ask(padded, padded_filter)):
            self._cudnn().plan(operation)  # raises
        announce(
            "%s: cuDNN has no engine for these channels; each call copies arrays to multiples of %d, which is slow",
            operation,
            _MULTIPLE,
        )
        return padded, padded_filter


def _rounded_up(channels):
    return ceil_div(channels, _MULTIPLE) * _MULTIPLE
