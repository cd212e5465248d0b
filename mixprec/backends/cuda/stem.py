"""First convolutions, of few channels and with a stride of 2, on images whose neighbouring pixels became channels.

Tensor cores want multiples of 8 channels, and images have three. A convolution with a stride of 2 has the same products
in its sums, and products with zeros, as one on *squares* of two by two pixels, known as "space to depth": a square has
the channels of its pixels, and a filter of 7x7 becomes one of 4x4 with 16 channels, without a stride. Zeros around the
image are squares in memory: more of them come before it than after, and with such a padding cuDNN takes no sums.

A product with zero is zero only for finite numbers: inf and NaN in an image reach one pixel further than the filter.
"""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mixprec.backends.cuda.base import ceil_div
from mixprec.backends.cuda.channels import Channels
from mixprec.backends.cuda.kernels import ACCESS
from mixprec.backends.geometry import Convolution, Following

_FILE = "stem"
_CHANNELS = 4  # that a pixel has at most; with fewer, zeros
_WIDTH = 4 * _CHANNELS  # channels of a square
ON_SQUARES = Convolution()  # how folded filters move
_FOLLOWING = Following(relu=True)
_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Squares(Convolution):
    """A convolution on images in the form of squares, (N, rows, columns, 16); its other attributes are unchanged.

    Attributes:
        size: (H, W) of the images.
        squares: numbers of rows and columns of squares, padding among them.
    """

    channels: ClassVar[int] = _WIDTH
    size: tuple[int, int] = (0, 0)
    squares: tuple[int, int] = (0, 0)

    def out_size(self, size, filter_size):
        return super().out_size(self.size, filter_size)

    @property
    def zeros(self):
        """Numbers of rows and columns of squares of zeros before the image."""
        return tuple(ceil_div(pad, 2) for pad in self.pad)

    @property
    def before(self):
        """Numbers of rows and columns of zeros before a filter: it begins in the middle of a square if that is odd."""
        return tuple(pad % 2 for pad in self.pad)

    def folded(self, w_shape):
        """Returns the shape of filters (K, R, S, C) that move over squares in steps of one, without padding."""
        lengths = (ceil_div(size + before, 2) for size, before in zip(w_shape[1:3], self.before, strict=True))
        return (w_shape[0], *lengths, _WIDTH)


@functools.lru_cache(maxsize=1024)
def squares_of(x_shape, w_shape, convolution):
    """Returns the :class:`Squares` of a convolution, or ``None`` if it is not computed on them.

    Args:
        x_shape: (N, H, W, C) of the images.
        w_shape: (K, R, S, C).
        convolution: :class:`~mixprec.backends.geometry.Convolution`.
    """
    size = x_shape[1:3]
    if (convolution.stride, convolution.dilation, convolution.groups) != ((2, 2), (1, 1), 1):
        return None
    if not w_shape[3] <= x_shape[3] <= _CHANNELS or any(length % 2 for length in size):
        return None
    outs, filters = convolution.out_size(size, w_shape[1:3]), Squares(**vars(convolution)).folded(w_shape)[1:3]
    if min(outs) <= 0:
        return None
    squares = tuple(out - 1 + length for out, length in zip(outs, filters, strict=True))
    return Squares(**vars(convolution), size=size, squares=squares)


class Stems(Channels):
    """Images in the form of squares for a first convolution, and its filters in the form for these."""

    def conv_form(self, x_shape, w_shape, dtype, convolution):
        x_shape, w_shape = tuple(x_shape), tuple(w_shape)
        if dtype.itemsize != 2 or squares_of(x_shape, w_shape, convolution) is None:
            return convolution
        key = "conv_form", x_shape, w_shape, dtype, convolution
        return self._choose(key, self._form_candidates, (True,))()

    def conv_images(self, x, form, dtype, *, channels_first=False):
        if not isinstance(form, Squares):
            return super().conv_images(x, form, dtype, channels_first=channels_first)
        y = self._empty((len(x), *form.squares, _WIDTH), dtype)
        places = math.prod(y.shape[:3])
        at_once = 1 if self._address(x) % ACCESS else ACCESS // x.dtype.itemsize
        arguments = [x, y, places, *form.squares, *form.zeros, *(length // 2 for length in form.size)]
        arguments += [x.shape[1 if channels_first else 3], int(channels_first)]
        blocks = ceil_div(places, self.launcher.threads)
        self.kernels.launch(_FILE, "fold_images", blocks, arguments, x.dtype, at_once, y.dtype)
        return y

    def conv_images_backward(self, dy, form, x_shape, dtype):
        if not isinstance(form, Squares):
            return super().conv_images_backward(dy, form, x_shape, dtype)
        dx = self._empty(x_shape, dtype)
        blocks = ceil_div(dx.size, self.launcher.threads)
        arguments = [dy, dx, dx.size, *form.squares, *form.zeros, *x_shape[1:]]
        self.kernels.launch(_FILE, "unfold_images", blocks, arguments, dy.dtype, other=dx.dtype)
        return dx

    def _form_candidates(self, x_shape, w_shape, dtype, convolution):
        squares = squares_of(x_shape, w_shape, convolution)
        one, other = (
            (name, functools.partial(self._form, x_shape, w_shape, dtype, form))
            for name, form in (("squares", squares), ("conv", convolution))
        )
        return self._by_rule([one], [other])

    def _form(self, x_shape, w_shape, dtype, form, is_measured=False):
        """Returns a form; measuring includes both passes of the convolution on images in Chainer's layout.

        A batch normalization follows; one of the forms can take sums for it.
        """
        if is_measured:
            images, *size, channels = x_shape
            x, w = self.launcher.full((images, channels, *size), 1, _FLOAT), self.launcher.full(w_shape, 1, dtype)
            if isinstance(form, Squares):
                x = self.conv_images(x, form, dtype, channels_first=True)
            else:
                x = self.to_nhwc(x, dtype, _CHANNELS)  # as convert has images that are not folded
            y, sums = self.conv_fprop(x, w, form, statistics=_FOLLOWING)
            self._batch_norm_of(y, sums, _FOLLOWING)
            self.conv_wgrad(x, y, form, w_shape)
        return form

    def _folded_filters(self, w, form):
        return self._filters("fold_filters", w, w.shape, form, form.folded(w.shape))

    def _wgrad_on_squares(self, x, dy, form, w_shape):
        folded = self.conv_wgrad(x, dy, ON_SQUARES, form.folded(w_shape))
        return self._filters("unfold_filters", folded, w_shape, form, w_shape)

    def _filters(self, name, filters, w_shape, form, shape):
        """Launches a kernel from filters to filters of another shape; ``w_shape`` is the unfolded shape."""
        found = self._empty(shape, filters.dtype)
        arguments = [filters, found, found.size, *w_shape[1:], *form.before]
        blocks = ceil_div(found.size, self.launcher.threads)
        self.kernels.launch(_FILE, name, blocks, arguments, filters.dtype)
        return found
