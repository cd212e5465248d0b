"""Cross entropies on a CUDA device: one launch each."""

import math

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div

_FILE = "loss"
_WARP = 32


class Losses(Base):
    """The losses of :class:`~mixprec.backends.primitives.Primitives`.

    A label that is neither a class nor ignored gives a loss of NaN.
    """

    def softmax_cross_entropy(
        self, x, t, *, class_weight=None, smoothing=0.0, ignore_label=-1, mixed=None, divisor=None
    ):
        losses, log_z = self._empty((len(x),), np.float32), self._empty((len(x),), np.float32)
        mean, of_mean = self._mean(divisor)
        width, lanes = self._lanes(x)
        arguments = [x, t, class_weight, losses, log_z, *of_mean, *_mixed(mixed)]
        arguments += [*x.shape, lanes, ignore_label, float(smoothing)]
        self._launch_rows("softmax_cross_entropy", arguments, x, width, lanes)
        return losses, log_z, mean

    def softmax_cross_entropy_backward(
        self, dlosses, x, t, log_z, *, class_weight=None, smoothing=0.0, ignore_label=-1, factor=None, mixed=None
    ):
        dx = self._empty(x.shape, x.dtype)
        width, lanes = self._lanes(x, dx)
        arguments = [dlosses, factor, x, t, class_weight, log_z, dx, int(dlosses.ndim > 0), *_mixed(mixed)]
        arguments += [*x.shape, lanes, ignore_label, float(smoothing)]
        self._launch_rows("softmax_cross_entropy_backward", arguments, x, width, lanes)
        return dx

    def binary_cross_entropy(self, x, t, *, smoothing=0.0, threshold=None, ignore_label=-1, mixed=None, divisor=None):
        losses = self._empty((len(x),), np.float32)
        mean, of_mean = self._mean(divisor)
        width, lanes = self._lanes(x)
        arguments = [x, t, losses, *of_mean, *_mixed(mixed), *x.shape, lanes, ignore_label]
        arguments += [float(smoothing), _or_infinity(threshold)]
        self._launch_rows("binary_cross_entropy", arguments, x, width, lanes)
        return losses, mean

    def binary_cross_entropy_backward(
        self, dlosses, x, t, *, smoothing=0.0, threshold=None, ignore_label=-1, factor=None, mixed=None
    ):
        dx = self._empty(x.shape, x.dtype)
        width, lanes = self._lanes(x, dx)
        arguments = [dlosses, factor, x, t, dx, int(dlosses.ndim > 0), *_mixed(mixed)]
        arguments += [*x.shape, lanes, ignore_label, float(smoothing), _or_infinity(threshold)]
        self._launch_rows("binary_cross_entropy_backward", arguments, x, width, lanes)
        return dx

    def accuracy(self, x, t, *, top=None, ignore_label=None):
        share = self._empty((), np.float32)
        width, lanes = self._lanes(x)
        arguments = [x, t, share, self.launcher.counters(3), *x.shape, lanes]
        arguments += [top or 0, int(ignore_label is not None), ignore_label or 0]
        self._launch_rows("accuracy", arguments, x, width, lanes)
        return share

    def _mean(self, divisor):
        """Returns the results of a loss over all rows, or ``None``, and the arguments of its kernel for them."""
        mean = None if divisor is None else tuple([self._empty((), np.float32) for _ in range(3)])
        return mean, [*(mean or [None] * 3), self.launcher.counters(2), float(divisor or -1)]

    def _lanes(self, *arrays):
        """Returns the number of classes of a thread at a time, and the number of threads of a row."""
        classes = arrays[0].shape[1]
        width = self._width(classes, *arrays)
        vectors = max(classes // width, 1)
        lanes = 1 << (vectors - 1).bit_length()
        return width, self.launcher.threads if lanes > 2 * _WARP else min(lanes, _WARP)

    def _launch_rows(self, name, arguments, x, width, lanes):
        blocks = max(ceil_div(x.shape[0], self.launcher.threads // lanes), 1)  # no rows have a mean, too
        self.kernels.launch(_FILE, name, blocks, arguments, x.dtype, width)


def _mixed(mixed):
    """Returns second labels and shares, and the step from the share of one row to the next."""
    if mixed is None:
        return None, None, 0
    second, share = mixed
    return second, share, int(share.ndim > 0)


def _or_infinity(threshold):
    """Returns a threshold in the form of the kernels: infinity means none, as no target is above it."""
    return math.inf if threshold is None else float(threshold)
