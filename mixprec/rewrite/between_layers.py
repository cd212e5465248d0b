"""Rules for functions between the layers of a model: poolings, elementwise functions, shapes, heads and losses.

Rules have the form of :mod:`mixprec.rewrite.layer_rules`: functions of ``(scope, node, inputs)`` that return outputs,
or ``None``. :func:`fence` is the rule for functions that are not Chainer's: it gives them inputs as in a plain model.
"""

import math
import numbers
import weakref

import chainer
from chainer.functions.activation.prelu import PReLUFunction
from chainer.functions.array.concat import Concat
from chainer.functions.array.reshape import Reshape
from chainer.functions.array.split_axis import SplitAxis
from chainer.functions.array.transpose import Transpose
from chainer.functions.evaluation.accuracy import Accuracy
from chainer.functions.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from chainer.functions.math.average import Mean
from chainer.functions.noise.dropout import Dropout
from chainer.functions.normalization.local_response_normalization import LocalResponseNormalization
from chainer.functions.pooling.average_pooling_2d import AveragePooling2D
from chainer.functions.pooling.average_pooling_nd import AveragePoolingND
from chainer.functions.pooling.max_pooling_nd import MaxPoolingND
from chainer.functions.util.forget import Forget

from mixprec.backends.geometry import LocalResponseNorm, is_in_plane, pooling_of
from mixprec.base.dtypes import BFLOAT16, STORAGE_DTYPES
from mixprec.functions import pooling
from mixprec.functions.classification import SoftmaxCrossEntropy as OurSoftmaxCrossEntropy
from mixprec.functions.classification import accuracy_as_chainer
from mixprec.functions.concatenation import Concatenation, RowParts, Rows
from mixprec.functions.dropout import Dropout as OurDropout
from mixprec.functions.local_response_normalization import LocalResponseNormalization as OurLocalResponseNormalization
from mixprec.functions.node import chainer_apply
from mixprec.rewrite.deferred import Deferred, can_follow, taken
from mixprec.rewrite.dtype_rules import on_views, rule_of
from mixprec.rewrite.joined import pooled
from mixprec.rewrite.memory_order import (
    TO_NCHW,
    TO_NHWC,
    in_storage_dtype,
    is_channels_last,
    is_dense,
    is_only_channels_last,
    is_part,
    run_in_order_of,
)

# Elementwise functions of Chainer that run on views (N, H, W, C) of images: on CUDA their outputs lie in the order of
# their axes. Operators are among them.
_ELEMENTWISE = {
    *("ClippedReLU", "ELU", "HardSigmoid", "LeakyReLU", "Sigmoid", "Softplus", "Tanh"),
    *("Absolute", "Div", "DivFromConstant", "PowConstVar", "PowVarConst", "PowVarVar"),
    *("Clip", "Erf", "Exp", "Expm1", "Log", "Log1p", "Maximum", "Minimum", "Sqrt", "Square"),
    *("AddConstant", "Mul", "MulConstant", "MultiAdd", "Neg", "Sub", "SubFromConstant"),
}

_POOLED = (3, 3), (2, 2)  # window and stride, as at the beginning of ResNets


def max_pooling(scope, node, inputs):
    """The rule for the maxima of windows; of 3x3 with a stride of 2 they are computed with what is deferred."""
    (x,) = inputs
    is_known = is_in_plane(node) and _are_images(x) and math.prod(node.ksize) <= pooling.LARGEST_WINDOW
    geometry = pooling_of(node, node.cover_all) if is_known else None
    if type(x) is Deferred:
        name, why = type(node).__name__, _why_apart(node, geometry)
        if not why and can_follow(x, name) and not x.normalization.counted:
            return (pooled(x, geometry),)
        if why and x.fusion is not None:
            x.normalization.site.apart = f"its max pooling apart: {why}"
        taken(x, name)
    if not is_known:
        return None
    ours = pooling.MaxPooling2D(geometry)
    y = ours.run(scope.images(x))
    if node.return_indices:
        node.indexes = ours.indexes()
    return (y,)


def _why_apart(node, geometry):
    """Returns why a max pooling is not computed together with a batch normalization, or an empty text."""
    if geometry is None or node.return_indices:
        return "indices are wanted, or its arguments are not known"
    if (geometry.window, geometry.stride) != _POOLED:
        (rows, columns), (down, across) = geometry.window, geometry.stride
        return f"windows are {rows}x{columns} with stride {down}x{across}, not 3x3 with 2x2"
    return ""


def _average_pooling(scope, node, inputs):
    (x,), geometry = inputs, pooling_of(node)
    divides_by_less = getattr(node, "pad_value", 0) is None and any(geometry.pad)
    if not is_in_plane(node) or divides_by_less or not _are_images(x):
        return None
    if geometry.window == x.shape[2:] and not any(geometry.pad):
        return (pooling.GlobalAveragePooling2D(keepdims=True).run(scope.images(x)),)
    return (pooling.AveragePooling2D(geometry).run(scope.images(x)),)


def _are_images(x):
    return x.ndim == 4 and x.dtype in STORAGE_DTYPES


def _mean(scope, node, inputs):
    (x,) = inputs
    if x.ndim != 4 or x.dtype not in STORAGE_DTYPES or node.axis is None or {axis % 4 for axis in node.axis} != {2, 3}:
        return None
    return (pooling.GlobalAveragePooling2D(node.keepdims).run(scope.images(x)),)


def _local_response_normalization(scope, node, inputs):
    (x,) = inputs
    if not (is_channels_last(x) and x.dtype in STORAGE_DTYPES) or node.n < 1:
        return None
    return (OurLocalResponseNormalization(LocalResponseNorm(node.n, node.k, node.alpha, node.beta)).run(x),)


def _prelu(scope, node, inputs):
    x, W = inputs
    if not is_only_channels_last(x) or W.ndim != 1:
        return None
    images, channels, height, width = x.shape
    pixels = chainer_apply(Reshape((images * height * width, channels)), chainer_apply(Transpose(TO_NHWC), (x,)))
    outputs = rule_of(type(node))(scope, node, (*pixels, W))
    return chainer_apply(Transpose(TO_NCHW), chainer_apply(Reshape((images, height, width, channels)), outputs))


def _dropout(scope, node, inputs):
    (x,) = inputs
    if node.mask is not None or node.return_mask or not (x.dtype in STORAGE_DTYPES and is_dense(x)):
        return None
    return (run_in_order_of(x, OurDropout(node.dropout_ratio), x),)


def _softmax_cross_entropy(scope, node, inputs):
    x, t = inputs
    if x.dtype not in STORAGE_DTYPES or t.dtype.kind != "i" or not (x.ndim == 2 or is_channels_last(x)):
        return None
    if x.ndim == 4:
        (x,) = chainer_apply(Transpose(TO_NHWC), (x,))
    options = {"class_weight": node.class_weight, "smoothing": 0.0}
    return OurSoftmaxCrossEntropy(node.normalize, node.ignore_label, node.reduce, **options).apply((x, t))


def _accuracy(scope, node, inputs):
    y, t = inputs
    if y.dtype not in STORAGE_DTYPES or y.ndim != 2 or t.ndim != 1 or t.dtype.kind != "i" or not len(y):
        return None
    if not (node.ignore_label is None or isinstance(node.ignore_label, numbers.Integral)):
        return None
    return (accuracy_as_chainer(y, t, node.ignore_label),)


def _concat(scope, node, inputs):
    if node.axis == 0 and len(inputs) > 1 and len({(x.dtype, x.shape[1:]) for x in inputs}) == 1 and inputs[0].ndim < 4:
        return Rows().apply(inputs)
    if node.axis != 1 or not in_storage_dtype(*inputs) or len({x.dtype for x in inputs}) > 1:
        return None
    if not any(is_channels_last(x) or is_part(x) for x in inputs) or any(x.ndim != 4 for x in inputs):
        return None
    images = [x if is_part(x) else scope.images(x) for x in inputs]  # a concatenation copies anyway
    return (Concatenation(len(inputs)).run(*images),)


def _split_axis(scope, node, inputs):
    (x,) = inputs
    ends = node.indices_or_sections
    if node.axis != 0 or not 0 < x.ndim < 4 or isinstance(ends, int):
        return None
    ends = [*map(int, ends), len(x)]
    return RowParts(ends).apply(inputs) if ends == sorted(ends) and ends[0] >= 0 else None


def _reshape(scope, node, inputs):
    (x,) = inputs
    if x.dtype in STORAGE_DTYPES:
        x = scope.in_order_of_axes(x)  # Chainer's would copy element by element
    if x.dtype == BFLOAT16:
        return rule_of(Reshape)(scope, node, (x,))
    return chainer_apply(node, (x,))  # in any other dtype: it computes nothing


def _forget(scope, node, inputs):
    node.func = scope.joined(node.func)
    return chainer_apply(node, inputs)


def elementwise(scope, node, inputs):
    """The rule for functions that compute each element alone; ``None`` if they are not applied to images in NHWC."""
    if not any(map(is_channels_last, inputs)) or not all(x.ndim == 4 or (x.size == 1 and x.ndim < 4) for x in inputs):
        return None
    if all(chainer.as_array(x).flags.c_contiguous for x in inputs):
        return None
    return on_views(scope, node, inputs)


def fence(scope, node, inputs):
    """The rule for functions that are not Chainer's: inputs in float32 and in the order of their axes.

    A function that calls links, such as a checkpoint, calls them again in its backward pass, as a part of this call.
    """
    outer, scope.has_called = scope.has_called, False
    outputs = chainer_apply(node, tuple(scope.plain(x) if x.dtype in STORAGE_DTYPES else x for x in inputs))
    if scope.has_called:
        backward, reference = type(node).backward, weakref.ref(node)  # no reference cycle, which would hold activations
        node.backward = scope.joined(lambda *args: backward(reference(), *args))
    scope.has_called |= outer
    return outputs


def is_elementwise(cls):
    """Whether a class of Chainer's function nodes is one of :func:`elementwise`."""
    return cls.__name__ in _ELEMENTWISE


RULES = {
    Accuracy: _accuracy,
    AveragePooling2D: _average_pooling,
    AveragePoolingND: _average_pooling,
    Concat: _concat,
    SplitAxis: _split_axis,
    Dropout: _dropout,
    LocalResponseNormalization: _local_response_normalization,
    MaxPoolingND: max_pooling,
    Mean: _mean,
    PReLUFunction: _prelu,
    Reshape: _reshape,
    SoftmaxCrossEntropy: _softmax_cross_entropy,
}
RULES_IN_ANY_ORDER = {Forget: _forget}
