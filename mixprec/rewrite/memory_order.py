"""Images (N, C, H, W) in the memory order of (N, H, W, C), PyTorch's "channels last": conversions both ways.

Code that is unaware of it sees the usual axes and right values. Rules come here through the scope of the call, which
converts inputs of the model once.
"""

import chainer

from mixprec.base.dtypes import BFLOAT16, STORAGE_DTYPES
from mixprec.functions.layout import Cast, Dense, ToNCHW, ToNHWC

TO_NHWC = (0, 2, 3, 1)  # axes for a transposition
TO_NCHW = (0, 3, 1, 2)


def in_storage_dtype(*xs):
    """Whether all arrays or variables are in float16, bfloat16 or float32."""
    return all(x.dtype in STORAGE_DTYPES for x in xs)


def is_channels_last(x):
    """Whether an array or variable has four axes, and its memory the order of (N, H, W, C)."""
    return x.ndim == 4 and chainer.as_array(x).transpose(TO_NHWC).flags.c_contiguous


def is_only_channels_last(x):
    """Whether an array or variable is :func:`is_channels_last`, and not in the order of its axes as well."""
    return is_channels_last(x) and not chainer.as_array(x).flags.c_contiguous


def is_part(x):
    """Whether an array or variable is a part of an image in the memory order of (N, H, W, C), as after a split."""
    if x.ndim != 4 or is_dense(x):
        return False
    array = chainer.as_array(x).transpose(TO_NHWC)
    strides = [stride for stride, size in zip(array.strides, array.shape, strict=True) if size > 1]
    dense_channels = x.shape[1] == 1 or strides[-1] == array.itemsize
    return dense_channels and strides == sorted(strides, reverse=True) and all(stride > 0 for stride in strides)


def is_dense(x):
    """Whether an array or variable lies in the order of its axes, or of (N, H, W, C)."""
    return chainer.as_array(x).flags.c_contiguous or is_channels_last(x)


def run_in_order_of(x, node, *inputs):
    """Applies an elementwise node of one output, which gets the memory order of ``x``."""
    node.channels_first = is_channels_last(x)
    return node.apply(inputs)[0]


def channels_last(x, dtype=None, channels=None):
    """Returns images in the memory order of (N, H, W, C); itself, if they are so.

    Args:
        x: variable or array (N, C, H, W) in a storage dtype.
        dtype: storage dtype of the result; ``None`` for the dtype of ``x``.
        channels: zeros are appended up to so many channels, if the order has to be changed; ``None`` for none.
    """
    dtype = x.dtype if dtype is None else dtype
    if is_part(x) or (channels is None and not is_dense(x)):
        x = Dense().run(x)  # one copy, in the new order
    if is_channels_last(x):
        return x if x.dtype == dtype else Cast(dtype).run(x)
    return ToNHWC(dtype, channels).run(x)


def channels_first(x, dtype=None):
    """Returns images in the memory order of (N, C, H, W); other arrays and orders change only in dtype."""
    dtype = x.dtype if dtype is None else dtype
    if is_only_channels_last(x):
        return ToNCHW(dtype, None).run(x)
    return x if x.dtype == dtype else cast(x, dtype)


def cast(x, dtype):
    """Returns a variable or array in a storage dtype, in its memory order; itself, if it has it."""
    if x.dtype == dtype:
        return x
    if BFLOAT16 not in (x.dtype, dtype) and not is_dense(x):
        return chainer.functions.cast(x, dtype)  # of parts, in the order they have
    if is_part(x):
        x = Dense().run(x)
    return run_in_order_of(x, Cast(dtype), x)
