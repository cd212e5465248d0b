"""Layout and dtype: between (N, C, H, W) and (N, H, W, C), and between storage dtypes."""

import chainer

from mixprec.base import arguments
from mixprec.functions import checks
from mixprec.functions.node import Node, dense


def to_nhwc(x, dtype=None, channels=None):
    """Returns (N, C, H, W) as (N, H, W, C).

    Args:
        x: (N, C, H, W) in a storage dtype.
        dtype: storage dtype of the result, rounded once; ``None`` for the dtype of ``x``.
        channels: zeros are appended up to so many channels; ``None`` for none. Tensor cores need a multiple of 8, or
            4 channels for a first convolution of 7x7.

    Returns:
        Variable (N, H, W, C or channels); its gradient has the layout and the dtype of ``x``.

    Raises:
        TypeError: x is not in a storage dtype.
        ValueError: x does not have four axes, or has more channels than ``channels``.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.zeros((8, 3, 224, 224), np.float32)
        >>> y = functions.to_nhwc(x, np.float16, channels=4)  # the last of the four channels is zero
        >>> y.shape, y.dtype.name
        ((8, 224, 224, 4), 'float16')
    """
    return ToNHWC(*_checked(ToNHWC.name, dtype, channels)).apply((x,))[0]


def to_nchw(x, dtype=None, channels=None):
    """Returns (N, H, W, C) as (N, C, H, W).

    Args:
        x: (N, H, W, C) in a storage dtype.
        dtype: storage dtype of the result, rounded once; ``None`` for the dtype of ``x``.
        channels: number of channels to keep, from the first on; ``None`` for all.

    Returns:
        Variable (N, C or channels, H, W); its gradient has the layout and the dtype of ``x``.

    Raises:
        TypeError: x is not in a storage dtype.
        ValueError: x does not have four axes, or has fewer channels than ``channels``.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.zeros((8, 7, 7, 16), np.float16)
        >>> y = functions.to_nchw(x, np.float32, channels=10)
        >>> y.shape, y.dtype.name
        ((8, 10, 7, 7), 'float32')
    """
    return ToNCHW(*_checked(ToNCHW.name, dtype, channels)).apply((x,))[0]


def cast(x, dtype):
    """Returns ``x``, any shape, rounded to a storage dtype; ``x`` itself as a variable if it has this dtype.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.array([1 / 3, 65520], np.float32)
        >>> functions.cast(x, "float16").array.tolist()  # 65504 is the largest float16
        [0.333251953125, inf]
        >>> functions.cast(x, "bfloat16").array.tolist()
        [0.333984375, 65536.0]
    """
    x = chainer.as_variable(checks.variable(Cast.name, "x", x))
    dtype = arguments.storage_dtype("cast: dtype", dtype)
    return x if x.dtype == dtype else Cast(dtype).apply((x,))[0]


def lay_out(param):
    """Gives an initialized parameter of filters (K, C, R, S) the memory order (K, R, S, C)."""
    view = param.array.transpose(0, 2, 3, 1)
    if not view.flags.c_contiguous:
        param.array = dense(view).transpose(0, 3, 1, 2)


def _checked(function, dtype, channels):
    """Returns these arguments of a function as a ``np.dtype`` and an int, or ``None`` each."""
    return (
        None if dtype is None else arguments.storage_dtype(f"{function}: dtype", dtype),
        None if channels is None else checks.whole(function, "channels", channels, 1),
    )


class _Layout(Node):
    """A node between the two layouts.

    Args:
        dtype: dtype of the result, or ``None`` for the dtype of the input.
        channels: number of channels of the result, or ``None`` for as many as the input has.
    """

    def __init__(self, dtype, channels):
        self._dtype = dtype
        self._channels = self.options = channels

    def compute(self, primitives, x):
        self._x = x.dtype, x.shape
        return (self._convert(primitives, x, self._dtype or x.dtype),)


class ToNHWC(_Layout):
    """See :func:`to_nhwc`."""

    name = "to_nhwc"

    def check(self, x):
        checks.dtype(self.name, "x", x)
        if x.ndim != 4 or (self._channels is not None and self._channels < x.shape[1]):
            limit = "" if self._channels is None else f" with at most {self._channels} channels"
            raise ValueError(f"{self.name}: x must be (N, C, H, W){limit}; found shape {x.shape}")

    def _convert(self, primitives, x, dtype):
        return primitives.to_nhwc(x, dtype, self._channels)

    def gradients(self, primitives, indexes, dy):
        dtype, shape = self._x
        return (primitives.to_nchw(dy, dtype, shape[1]),)


class ToNCHW(_Layout):
    """See :func:`to_nchw`."""

    name = "to_nchw"
    image_inputs = (0,)
    makes_images = False

    def check(self, x):
        checks.dtype(self.name, "x", x)
        if x.ndim != 4 or (self._channels is not None and self._channels > x.shape[3]):
            limit = "" if self._channels is None else f" with at least {self._channels} channels"
            raise ValueError(f"{self.name}: x must be (N, H, W, C){limit}; found shape {x.shape}")

    def _convert(self, primitives, x, dtype):
        return primitives.to_nchw(x, dtype, self._channels)

    def gradients(self, primitives, indexes, dy):
        dtype, shape = self._x
        return (primitives.to_nhwc(dy, dtype, shape[3]),)


class Dense(Node):
    """A copy of a part of images, without the gaps between its elements."""

    name = "dense"
    image_inputs = (0,)
    takes_strided = True

    def compute(self, primitives, x):
        return (dense(x),)

    def gradients(self, primitives, indexes, dy):
        return (dy,)


class Cast(Node):
    """See :func:`cast`."""

    name = "cast"
    is_repeatable = True
    image_inputs = (0,)

    def __init__(self, dtype):
        self._dtype = dtype

    def compute(self, primitives, x):
        self._x_dtype = x.dtype
        return (primitives.cast(x, self._dtype),)

    def gradients(self, primitives, indexes, dy):
        return (primitives.cast(dy, self._x_dtype),)
