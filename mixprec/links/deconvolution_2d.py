"""The link for transposed convolution of NHWC images."""

import chainer.links as L

from mixprec import functions
from mixprec.functions import checks
from mixprec.precision.storage import ChannelsLast, filter_sizes, rounded


class Deconvolution2D(ChannelsLast, L.Deconvolution2D):
    """Transposed convolution of (N, H, W, C), otherwise :class:`chainer.links.Deconvolution2D`.

    W has the shape (in_channels, out_channels / groups, R, S) and lies in memory with its channels last, as does its
    gradient.

    Args:
        in_channels: number of channels of the input; ``None`` to take it from the first input.
        out_channels: number of channels of the output.
        ksize: rows and columns of a filter; a number or a pair.
        stride: steps of the filter over the output; a number or a pair.
        pad: rows and columns on every side that are cut off the output; a number or a pair.
        nobias: whether there is no bias.
        outsize: (OH, OW); ``None`` for the smallest that fits.
        initialW: initializer of W, an array, or a number.
        initial_bias: initializer of b, an array (out_channels,), or a number.
        dilate: steps between two elements of a filter; a number or a pair.
        groups: number of groups of channels.
        dtype: as in :class:`~mixprec.links.Convolution2D`.

    Raises:
        TypeError: ``nobias`` is not a bool, or an initializer argument is not an initializer.
        ValueError: another argument is out of its range.

    Example:
        >>> import numpy as np
        >>> from mixprec import links
        >>> deconv = links.Deconvolution2D(16, 8, 2, stride=2, dtype="float16")  # doubles rows and columns
        >>> deconv(np.ones((8, 7, 7, 16), np.float16)).shape, deconv.W.shape
        ((8, 14, 14, 8), (16, 8, 2, 2))
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        ksize=None,
        stride=1,
        pad=0,
        nobias=False,
        outsize=None,
        initialW=None,
        initial_bias=None,
        *,
        dilate=1,
        groups=1,
        dtype=None,
    ):
        in_channels, out_channels, ksize = filter_sizes(
            "Deconvolution2D", in_channels, out_channels, ksize, stride, pad, nobias, dilate, groups
        )
        if outsize is not None:
            checks.pair("Deconvolution2D", "outsize", outsize, 1)
        filters, bias = rounded("Deconvolution2D", initialW, initial_bias, dtype)
        super().__init__(
            *(in_channels, out_channels, ksize, stride, pad, nobias, outsize, filters, bias),
            dilate=dilate,
            groups=groups,
        )

    def forward(self, x):
        """Computes the transposed convolution.

        Args:
            x: (N, H, W, in_channels) in the dtype of W.

        Returns:
            Variable (N, OH, OW, out_channels).
        """
        self.prepare(x)
        outsize = None if self.outsize[0] is None else self.outsize
        return functions.deconvolution_2d(
            x, self.W, self.b, self.stride, self.pad, outsize, dilate=self.dilate, groups=self.groups
        )
