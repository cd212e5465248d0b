"""First convolutions, of few channels and with a stride of 2, on images whose neighbouring pixels became channels.

Tensor cores want multiples of 8 channels, and images have three. A convolution with a stride of 2 has the same products
in its sums, and products with zeros, as one whose channels are those of two neighbouring columns (*pairs*: a filter of
7x7 becomes one of 7x4 with 8 channels; images of four channels stay as they are in memory), or of squares of two by two
pixels (*squares*, known as "space to depth": a filter of 4x4 with 16 channels, without a stride).

A product with zero is zero only for finite numbers: inf and NaN in an image reach one pixel further than the filter.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from mixprec.backends.cuda import operations
from mixprec.backends.cuda.base import ceil_div
from mixprec.backends.cuda.channels import Channels
from mixprec.backends.cuda.kernels import ACCESS
from mixprec.backends.geometry import Convolution

_FILE = "stem"
_CHANNELS = 4  # that a pixel has at most; with fewer, zeros
_ROWS = {"pairs": 1, "squares": 2}  # of pixels that become one, as two columns always do
# On an H100 the stem of a ResNet-50 took 1.25 ms both ways when it was tuned, and 2.67 as it is. The record does not
# name the way. Pairs move as many bytes; squares have no stride, so that more engines are good at them.
_BY_RULE = "squares"


@dataclass(frozen=True)
class _Uneven(Convolution):
    """A convolution with other rows and columns of zeros after the image than before it.

    Attributes:
        pad_after: rows and columns after the image; ``pad`` are those before it.
    """

    pad_after: tuple[int, int] = (0, 0)

    def out_size(self, size, filter_size):
        lengths = zip(size, filter_size, self.pad, self.pad_after, self.stride, strict=True)
        return tuple((n + pad + after - span) // stride + 1 for n, span, pad, after, stride in lengths)


class _Fold(NamedTuple):
    """The convolution that computes another one on folded images.

    Attributes:
        rows: number of rows of pixels that become one.
        before: numbers of rows and columns of zeros before the filter.
        x_shape: of the folded images, (N, H / rows, W / 2, 8 * rows).
        w_shape: of the folded filters.
        convolution: how these move.
    """

    rows: int
    before: tuple[int, int]
    x_shape: tuple
    w_shape: tuple
    convolution: _Uneven


def fold_of(rows, x_shape, w_shape, convolution):
    """Returns the :class:`_Fold` of a convolution, or ``None`` if there is none.

    Args:
        rows: number of rows of pixels to become one, 1 or 2.
        x_shape: (N, H, W, C).
        w_shape: (K, R, S, C).
        convolution: :class:`~mixprec.backends.geometry.Convolution`.
    """
    (images, *size, channels), (filters, *filter_size, _) = x_shape, w_shape
    if (convolution.stride, convolution.dilation, convolution.groups) != ((2, 2), (1, 1), 1):
        return None
    if channels > _CHANNELS or any(length % fold for length, fold in zip(size, (rows, 2), strict=True)):
        return None
    outs = convolution.out_size(size, filter_size)
    axes = [_axis(*lengths) for lengths in zip((rows, 2), size, filter_size, convolution.pad, outs, strict=True)]
    folded_size, folded_filter, before, pad, pad_after = zip(*axes, strict=True)
    if min(pad_after) < 0:
        return None
    width = rows * 2 * _CHANNELS
    moves = _Uneven(stride=(2 // rows, 1), pad=pad, pad_after=pad_after)
    return _Fold(rows, before, (images, *folded_size, width), (filters, *folded_filter, width), moves)


def _axis(fold, size, filter_size, pad, out_size):
    """Returns of an axis: folded pixels and elements of the filter, zeros before those, padding before and after."""
    if fold == 1:
        return size, filter_size, 0, pad, pad
    # The first element meets pixel -pad, which is to be one of the first of two: an odd padding takes a zero before it.
    before = pad % 2
    folded, folded_filter, folded_pad = size // 2, ceil_div(filter_size + before, 2), ceil_div(pad, 2)
    return folded, folded_filter, before, folded_pad, out_size - 1 + folded_filter - folded_pad - folded


def folds_of(x_shape, w_shape, dtype, convolution):
    """Returns the ways with a :class:`_Fold`: the one that is first by rule, and the others.

    Args:
        x_shape: as of :func:`fold_of`.
        w_shape: likewise.
        dtype: the storage dtype, of NumPy.
        convolution: likewise.

    Returns:
        two lists of pairs of name and fold.
    """
    folds = [
        (name, fold_of(rows, x_shape, w_shape, convolution)) for name, rows in _ROWS.items() if dtype.itemsize == 2
    ]
    folds = [(name, fold) for name, fold in folds if fold is not None]
    return [pair for pair in folds if pair[0] == _BY_RULE], [pair for pair in folds if pair[0] != _BY_RULE]


class Stems(Channels):
    """Candidates for a first convolution, like those of other convolutions."""

    def _stem_fprop_candidates(self, folds, dtype, b, relu):
        for name, fold in folds:
            operation = operations.conv_fprop(fold.x_shape, fold.w_shape, dtype, fold.convolution, b=b, relu=relu)
            if self._cudnn().supports(operation):
                yield name, functools.partial(self._stem_fprop, self._cudnn().plan(operation), fold)

    def _stem_wgrad_candidates(self, folds, dy_shape, w_shape, dtype):
        for name, fold in folds:
            operation = operations.conv_wgrad(fold.x_shape, dy_shape, fold.w_shape, dtype, fold.convolution)
            if self._cudnn().supports(operation):
                yield name, functools.partial(self._stem_wgrad, self._cudnn().plan(operation), fold, w_shape)

    def _stem_fprop(self, plan, fold, x, w, b):
        images = self._folded_images(x, fold)
        filters = self._folded_filters("fold_filters", w, w.shape, fold, fold.w_shape)
        return self._computed(plan, images, filters, *([] if b is None else [b]))

    def _stem_wgrad(self, plan, fold, w_shape, x, dy):
        folded = self._computed(plan, self._folded_images(x, fold), dy)
        return self._folded_filters("unfold_filters", folded, w_shape, fold, w_shape)

    def _folded_images(self, x, fold):
        channels = x.shape[3]
        if fold.rows == 1 and channels == _CHANNELS:
            return x.reshape(fold.x_shape)
        y = self._empty(fold.x_shape, x.dtype)
        places = math.prod(fold.x_shape[:3])
        width = 1 if self._address(x) % ACCESS else ACCESS // x.dtype.itemsize
        arguments = [x, y, places, fold.x_shape[2], channels, fold.rows]
        blocks = ceil_div(places, self.launcher.threads)
        self.kernels.launch(_FILE, "fold_images", blocks, arguments, x.dtype, width)
        return y

    def _folded_filters(self, name, filters, w_shape, fold, shape):
        """Launches a kernel from filters to others of a shape; ``w_shape`` is that of the ones that are not folded."""
        found = self._empty(shape, filters.dtype)
        arguments = [filters, found, found.size, *w_shape[1:], fold.rows, *fold.before]
        blocks = ceil_div(found.size, self.launcher.threads)
        self.kernels.launch(_FILE, name, blocks, arguments, filters.dtype)
        return found
