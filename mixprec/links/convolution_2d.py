"""The link for convolution of NHWC images."""

import chainer
import chainer.links as L

from mixprec import functions
from mixprec.precision.storage import ChannelsLast, filter_sizes, rounded


class Convolution2D(ChannelsLast, L.Convolution2D):
    """Two-dimensional convolution of (N, H, W, C), otherwise :class:`chainer.links.Convolution2D`.

    W has the shape (K, C / groups, R, S) and lies in memory as (K, R, S, C / groups), as does its gradient.

    Args:
        in_channels: number of channels of the input; ``None`` to take it from the first input, including padding.
        out_channels: number of filters.
        ksize: rows and columns of a filter; a number or a pair.
        stride: steps of the filter; a number or a pair.
        pad: rows and columns of zeros on every side; a number or a pair.
        nobias: whether there is no bias.
        initialW: initializer of W, an array (K, C / groups, R, S), or a number.
        initial_bias: initializer of b, an array (K,), or a number.
        dilate: steps between two elements of a filter; a number or a pair.
        groups: number of groups of channels.
        dtype: dtype of W, b and the input: ``"float16"``, ``"bfloat16"`` or ``"float32"``; ``None`` for the dtype of
            initialW if it has one, otherwise ``chainer.config.dtype``, with float16 for ``chainer.mixed16``.

    Raises:
        TypeError: ``nobias`` is not a bool, or an initializer argument is not an initializer.
        ValueError: another argument is out of its range.

    Example:
        >>> import numpy as np
        >>> from mixprec import links
        >>> conv = links.Convolution2D(None, 16, 3, stride=2, pad=1, nobias=True, dtype="float16")
        >>> y = conv(np.ones((8, 32, 32, 4), np.float16), relu=True)
        >>> y.shape, conv.W.shape  # W is as in Chainer
        ((8, 16, 16, 16), (16, 4, 3, 3))
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        ksize=None,
        stride=1,
        pad=0,
        nobias=False,
        initialW=None,
        initial_bias=None,
        *,
        dilate=1,
        groups=1,
        dtype=None,
    ):
        in_channels, out_channels, ksize = filter_sizes(
            "Convolution2D", in_channels, out_channels, ksize, stride, pad, nobias, dilate, groups
        )
        filters, bias = rounded("Convolution2D", initialW, initial_bias, dtype)
        with chainer.using_config("compute_mode", None):  # Chainer's own NHWC mode gives W another shape
            super().__init__(
                in_channels, out_channels, ksize, stride, pad, nobias, filters, bias, dilate=dilate, groups=groups
            )

    @property
    def printable_specs(self):
        """Yields what ``str`` shows."""
        yield from super().printable_specs
        yield "dtype", self.W.dtype.name

    def forward(self, x, *, relu=False):
        """Convolves.

        Args:
            x: (N, H, W, C) in the dtype of W. C may be padded with zeros up to the next multiple of 8.
            relu: whether a ReLU follows.

        Returns:
            Variable (N, OH, OW, K).
        """
        self.prepare(x)
        return functions.convolution_2d(
            x, self.W, self.b, self.stride, self.pad, dilate=self.dilate, groups=self.groups, relu=relu
        )
