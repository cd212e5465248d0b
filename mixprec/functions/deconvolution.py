"""Transposed convolution of images (N, H, W, C)."""

from mixprec.functions import checks
from mixprec.functions.convolution import FilterNode, convolution_of


def deconvolution_2d(x, W, b=None, stride=1, pad=0, outsize=None, *, dilate=1, groups=1):
    """Computes the transposed convolution, as :func:`chainer.functions.deconvolution_2d` does, in NHWC.

    Args:
        x: (N, H, W, K) in a storage dtype.
        W: filters (K, C / groups, R, S), Chainer's shape, in the dtype of ``x``; memory as in
            :func:`~mixprec.functions.convolution_2d`.
        b: bias (C,) in the dtype of ``x`` or float32.
        stride: steps of the filter over the output, in pixels; a number or (vertical, horizontal).
        pad: rows and columns on every side that are cut off the output; a number or (vertical, horizontal).
        outsize: (OH, OW); ``None`` for the smallest that fits.
        dilate: steps between two elements of the filter; a number or (vertical, horizontal).
        groups: number of groups of channels.

    Returns:
        Variable (N, OH, OW, C).

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape does not fit.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.ones((2, 4, 4, 16), np.float16)  # (N, H, W, K)
        >>> W = np.ones((16, 2, 2, 8), np.float16).transpose(0, 3, 1, 2)  # (K, C, R, S), channels last in memory
        >>> y = functions.deconvolution_2d(x, W, stride=2)
        >>> y.shape, float(y.array[0, 0, 0, 0])  # windows do not overlap: the sum over K
        ((2, 8, 8, 8), 16.0)
    """
    name = Deconvolution2D.name
    convolution = convolution_of(name, stride, pad, dilate, groups)
    node = Deconvolution2D(convolution, None if outsize is None else checks.pair(name, "outsize", outsize, 1))
    return node.apply((x, W) if b is None else (x, W, b))[0]


class Deconvolution2D(FilterNode):
    """See :func:`deconvolution_2d`; inputs x, W and perhaps b."""

    name = "deconvolution_2d"
    is_repeatable = True

    def __init__(self, convolution, outsize):
        super().__init__(convolution)
        self._outsize = outsize
        self.options = convolution, outsize

    def check(self, x, W, b=None):
        checks.images(self.name, "x", x, len(W) if W.ndim == 4 else None)
        self.check_filters(W, x)
        out_size = self._out_size(x, W.shape[2:])
        if min(out_size) <= 0 or self.convolution.out_size(out_size, W.shape[2:]) != x.shape[1:3]:
            raise ValueError(
                f"{self.name}: an output of {out_size} pixels does not belong to x {x.shape} and W {W.shape} with "
                f"stride {self.convolution.stride} and pad {self.convolution.pad}"
            )
        if b is not None:
            checks.bias(self.name, b, W.shape[1] * self.convolution.groups, x)

    def _out_size(self, x, filter_size):
        if self._outsize is not None:
            return self._outsize
        convolution = self.convolution
        sides = zip(x.shape[1:3], filter_size, convolution.stride, convolution.pad, convolution.dilation, strict=True)
        return tuple((n - 1) * stride + (r - 1) * dilation + 1 - 2 * pad for n, r, stride, pad, dilation in sides)

    def compute(self, primitives, x, w, b=None):
        self.retain_inputs((0, 1))
        self._bias_dtype = None if b is None else b.dtype
        y_shape = (len(x), *self._out_size(x, w.shape[1:3]), w.shape[3] * self.convolution.groups)
        return (primitives.deconv_fprop(x, w, self.convolution, y_shape, b),)

    def gradients(self, primitives, indexes, dy):
        x, w = self.retained()
        dw = self.wgrad(primitives, dy, x, w.shape) if 1 in indexes else None
        dx = primitives.conv_fprop(dy, w, self.convolution) if 0 in indexes else None
        db = primitives.bias_grad(dy, self._bias_dtype) if 2 in indexes else None
        return (dx, dw, db)[: len(self.inputs)]
