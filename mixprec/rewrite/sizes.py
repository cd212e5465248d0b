"""Rules on NHWC for functions that move or repeat pixels: padding, flips, interpolation, counterparts of poolings.

Rules have the form of :mod:`mixprec.rewrite.layer_rules`. They apply to images that are already in the memory order of
(N, H, W, C); other images stay in Chainer's code.
"""

import numpy as np
from chainer.functions.array.flip import Flip
from chainer.functions.array.pad import Pad
from chainer.functions.array.repeat import Repeat
from chainer.functions.array.resize_images import ResizeImages
from chainer.functions.pooling.roi_average_align_2d import ROIAverageAlign2D
from chainer.functions.pooling.roi_average_pooling_2d import ROIAveragePooling2D
from chainer.functions.pooling.roi_max_align_2d import ROIMaxAlign2D
from chainer.functions.pooling.roi_max_pooling_2d import ROIMaxPooling2D
from chainer.functions.pooling.roi_pooling_2d import ROIPooling2D
from chainer.functions.pooling.unpooling_2d import Unpooling2D
from chainer.functions.pooling.unpooling_nd import UnpoolingND
from chainer.functions.pooling.upsampling_2d import Upsampling2D
from chainer.utils import conv

from mixprec.backends.geometry import is_in_plane, pooling_of
from mixprec.base.dtypes import FLOAT32, STORAGE_DTYPES
from mixprec.functions import resizing
from mixprec.functions.layout import Dense
from mixprec.functions.pooling import LARGEST_WINDOW
from mixprec.rewrite.dtype_rules import in_float32, on_views
from mixprec.rewrite.memory_order import TO_NHWC, channels_first, channels_last, is_channels_last, is_only_channels_last

_OF_EACH_AXIS = ("constant_values", "end_values", "stat_length")  # further arguments of numpy.pad


def _pad(scope, node, inputs):
    (x,) = inputs
    if not is_only_channels_last(x):
        return None
    try:
        widths = _in_nhwc(node.pad_width)
        further = {name: _in_nhwc(value) if name in _OF_EACH_AXIS else value for name, value in node.keywords.items()}
    except ValueError:
        return None  # Chainer's own error
    return on_views(scope, Pad(widths, node.mode, **further), inputs)


def _in_nhwc(value):
    """Returns a number or pair for all axes, or pairs for each of (N, C, H, W), as pairs for each of (N, H, W, C)."""
    return None if value is None else np.broadcast_to(value, (4, 2))[list(TO_NHWC)].tolist()


def _flip(scope, node, inputs):
    (x,) = inputs
    if not (is_only_channels_last(x) and x.dtype in STORAGE_DTYPES) or not -4 <= node.axis < 4:
        return None
    (y,) = on_views(scope, Flip(TO_NHWC.index(node.axis % 4)), inputs)
    return (Dense().run(y),)  # it is a view, which all that follows would have to copy


def _repeat(scope, node, inputs):
    (x,) = inputs
    if not is_only_channels_last(x) or node.axis is None or not -4 <= node.axis < 4:
        return None
    return on_views(scope, Repeat(node.repeats, TO_NHWC.index(node.axis % 4)), inputs)


def _resize_images(scope, node, inputs):
    (x,) = inputs
    if not _are_in_nhwc(x):
        return None
    return (resizing.ResizeImages((node.out_H, node.out_W), node.mode, node.align_corners).run(x),)


def _unpooling(scope, node, inputs):
    (x,), geometry = inputs, pooling_of(node, node.cover_all)
    given = (node.outh, node.outw) if isinstance(node, Unpooling2D) else node.outs or (None, None)
    size = _out_size(x, geometry, given) if is_in_plane(node) else None
    if size is None or geometry.stride != geometry.window or any(geometry.pad):
        return None
    return (resizing.Unpooling2D(size, geometry).run(x),)


def _upsampling(scope, node, inputs):
    (x,), geometry = inputs, pooling_of(node, node.cover_all)
    size = _out_size(x, geometry, (node.outh, node.outw))
    if size is None or node.indexes.shape != x.shape or node.kh * node.kw > LARGEST_WINDOW:
        return None
    where = node.indexes.transpose(TO_NHWC).astype(np.uint8, order="C")
    return (resizing.Upsampling2D(size, geometry, where).run(x),)


def _out_size(x, geometry, given):
    """Returns (OH, OW) of the images that a pooling would make ``x`` of, or ``None`` if there are none.

    Args:
        x: images (N, C, H, W).
        geometry: :class:`~mixprec.backends.geometry.Pooling`.
        given: (OH, OW) as the user gave them, or ``None`` for each.
    """
    if not _are_in_nhwc(x):
        return None
    lengths = zip(given, x.shape[2:], geometry.window, geometry.stride, geometry.pad, strict=True)
    size = tuple(
        conv.get_deconv_outsize(n, window, stride, pad, cover_all=geometry.cover_all) if out is None else out
        for out, n, window, stride, pad in lengths
    )
    return size if min(size) > 0 and geometry.out_size(size) == x.shape[2:] else None  # else it is Chainer's error


def _regions(scope, node, inputs):
    """The rule for pooling of regions, which Chainer computes in NCHW and float32.

    In 16 bits either side is cast anyway, and the cast changes the order as well: that costs nothing more.
    """
    x, *regions = inputs
    if not is_only_channels_last(x) or x.dtype not in STORAGE_DTYPES or x.dtype == FLOAT32:
        return None
    (y,) = in_float32(scope, node, (channels_first(x, FLOAT32), *regions))
    return (scope.also_in_order_of_axes(channels_last(y, x.dtype), y),)


def _are_in_nhwc(x):
    return is_channels_last(x) and x.dtype in STORAGE_DTYPES


RULES = {
    Flip: _flip,
    Pad: _pad,
    Repeat: _repeat,
    ResizeImages: _resize_images,
    Upsampling2D: _upsampling,
    **dict.fromkeys((Unpooling2D, UnpoolingND), _unpooling),
    **dict.fromkeys((ROIAverageAlign2D, ROIAveragePooling2D), _regions),
    **dict.fromkeys((ROIMaxAlign2D, ROIMaxPooling2D, ROIPooling2D), _regions),
}
