"""Chainer's layers, each replaced by a node of :mod:`mixprec.functions` on NHWC.

Each rule is a function of ``(scope, node, inputs)``: Chainer's node, which has not been applied, and what it would be
applied to. It returns the outputs, or ``None`` if it does not fit, for example for images of float64.
"""

import functools
import numbers

import chainer
from chainer.functions.array.transpose import Transpose
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.deconvolution_2d import Deconvolution2DFunction
from chainer.functions.connection.linear import LinearFunction
from chainer.functions.evaluation.accuracy import Accuracy
from chainer.functions.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from chainer.functions.math.average import Mean
from chainer.functions.noise.dropout import Dropout
from chainer.functions.normalization.batch_normalization import BatchNormalization, FixedBatchNormalization
from chainer.functions.normalization.local_response_normalization import LocalResponseNormalization
from chainer.functions.pooling.average_pooling_2d import AveragePooling2D
from chainer.functions.pooling.average_pooling_nd import AveragePoolingND
from chainer.functions.pooling.max_pooling_nd import MaxPoolingND

from mixprec.backends.geometry import BatchNorm, Following, LocalResponseNorm, Pooling
from mixprec.functions import accuracy, pooling
from mixprec.functions.batch_normalization import BatchNormalization as OurBatchNormalization
from mixprec.functions.batch_normalization import FixedBatchNormalization as OurFixedBatchNormalization
from mixprec.functions.convolution import Convolution2D, convolution_of
from mixprec.functions.deconvolution import Deconvolution2D
from mixprec.functions.dropout import Dropout as OurDropout
from mixprec.functions.linear import Linear
from mixprec.functions.local_response_normalization import LocalResponseNormalization as OurLocalResponseNormalization
from mixprec.functions.node import dense
from mixprec.functions.softmax_cross_entropy import SoftmaxCrossEntropy as OurSoftmaxCrossEntropy
from mixprec.links.storage import lay_out
from mixprec.rewrite import dtype_rules, fusion
from mixprec.rewrite.dtype_rules import chainer_apply
from mixprec.rewrite.memory_order import (
    TO_NHWC,
    in_storage_dtype,
    is_channels_last,
    is_dense,
    run,
    run_in_order_of,
)
from mixprec.rewrite.sums import Convolved, convolved_as

_STEM = 3  # channels of an image; a Tensor core wants a multiple of 8, or 4 of the first layer


def _convolution(scope, node, inputs):
    x, W, *b = inputs
    if node.cover_all or not _are_images_and_filters(inputs):
        return None
    if x.shape[1] != W.shape[1] * node.groups and (_is_computed(x) or not is_channels_last(x)):
        return None  # Chainer's own error; images of a loader may be padded
    place = None if b else scope.place()
    following = None if place is None else place.take_following()
    ours = Convolution2D(_convolution_of(node), relu=False, statistics=following or False)
    padded = _STEM + 1 if x.shape[1] == W.shape[1] == _STEM else None
    y = run(ours, scope.images(x, scope.compute, padded), _filters(scope, W), *_biases(scope, b))
    if place is not None:
        scope.convolved[id(y)] = Convolved(y, ours.sums, place)
    return (y,)


def _deconvolution(scope, node, inputs):
    x, W, *b = inputs
    if not _are_images_and_filters(inputs):
        return None
    ours = Deconvolution2D(_convolution_of(node), None if node.outh is None else (node.outh, node.outw))
    return (run(ours, scope.images(x, scope.compute), _filters(scope, W), *_biases(scope, b)),)


def _is_computed(x):
    return isinstance(x, chainer.Variable) and x.creator_node is not None


def _are_images_and_filters(inputs):
    return inputs[0].ndim == inputs[1].ndim == 4 and in_storage_dtype(*inputs)


def _convolution_of(node):
    return _geometry((node.sy, node.sx), (node.ph, node.pw), (node.dy, node.dx), node.groups)


@functools.cache
def _geometry(stride, pad, dilate, groups):
    return convolution_of(Convolution2D.name, stride, pad, dilate, groups)


def _filters(scope, W):
    # Chainer and CuPy copy arrays into the order of their axes here and there: Link.copy, to_device, pickle.
    if isinstance(W, chainer.Parameter):
        lay_out(W)
    elif not is_channels_last(W):
        W = scope.images(W)
    return scope.cast(W, scope.compute)


def _biases(scope, b):
    return [scope.cast(each, scope.compute) for each in b]


def _linear(scope, node, inputs):
    if inputs[0].ndim != 2 or not in_storage_dtype(*inputs):
        return None
    return Linear().apply(tuple(scope.cast(x, scope.compute) for x in inputs))


def _batch_normalization(scope, node, inputs):
    if not dtype_rules.is_chainers_own(node):
        fusion.leave(scope, dtype_rules.whose(node))
        return None
    x, rest = _normalized(scope, node, inputs)
    if x is None:
        return None
    running = None if node.running_mean is None else (node.running_mean, node.running_var)
    if running and not all(array.dtype == "float32" and array.flags.c_contiguous for array in running):
        return None
    eps, decay, convolved = node.eps, node.decay, convolved_as(scope, x)

    def build(relu, add, count):
        if convolved is not None:
            convolved.place.following = Following(relu, add)
        sums = None if convolved is None else convolved.sums
        return OurBatchNormalization(BatchNorm(eps, decay, relu), running if count else None, sums)

    return (fusion.normalization(scope, x, rest, build, running or (), True),)


def _fixed_batch_normalization(scope, node, inputs):
    *inputs, mean, var = inputs
    x, rest = _normalized(scope, node, inputs)
    if x is None or any(map(_wants_gradient, (mean, var))):  # Chainer's has gradients of statistics
        return None
    statistics = tuple(dense(chainer.as_array(each).astype("float32", copy=False)) for each in (mean, var))
    eps = node.eps

    def build(relu, add, count):
        return OurFixedBatchNormalization(BatchNorm(eps, relu=relu), statistics)

    return (fusion.normalization(scope, x, rest, build, statistics, False),)


def _wants_gradient(x):
    return chainer.config.enable_backprop and isinstance(x, chainer.Variable) and x.requires_grad


def _normalized(scope, node, inputs):
    """Returns the input of a batch normalization over all axes but the channels, and float32 gamma and beta."""
    x, gamma, beta = inputs
    axes = {2: (0,), 4: (0, 2, 3)}.get(x.ndim)
    if axes is None or gamma.ndim != 1 or node.axis not in (None, axes) or not in_storage_dtype(*inputs):
        return None, None
    rest = scope.cast(gamma, "float32"), scope.cast(beta, "float32")
    if x.ndim == 4:
        x = scope.images(x)
    if not (isinstance(x, chainer.Variable) or chainer.config.enable_backprop):
        x = x.copy(order="K")  # somebody may fill the same buffer again before what is deferred is computed
    return chainer.as_variable(x), rest


def _local_response_normalization(scope, node, inputs):
    (x,) = inputs
    if not (is_channels_last(x) and in_storage_dtype(x)) or node.n < 1:
        return None
    return (run(OurLocalResponseNormalization(LocalResponseNorm(node.n, node.k, node.alpha, node.beta)), x),)


def _max_pooling(scope, node, inputs):
    if node.return_indices or node.ndim != 2:
        return None
    return _pool(scope, inputs, pooling.MaxPooling2D, node.ksize, node.stride, node.pad, node.cover_all)


def _average_pooling(scope, node, inputs):
    window, stride, pad = (node.kh, node.kw), (node.sy, node.sx), (node.ph, node.pw)
    return _pool(scope, inputs, pooling.AveragePooling2D, window, stride, pad, False)


def _average_pooling_nd(scope, node, inputs):
    if node.ndim != 2 or (node.pad_value is None and any(node.pad)):
        return None
    return _pool(scope, inputs, pooling.AveragePooling2D, node.ksize, node.stride, node.pad, False)


def _pool(scope, inputs, cls, window, stride, pad, cover_all):
    (x,) = inputs
    if x.ndim != 4 or not in_storage_dtype(x):
        return None
    window, stride, pad = tuple(window), tuple(stride), tuple(pad)
    if cls is pooling.AveragePooling2D and window == x.shape[2:] and not any(pad):
        return (run(pooling.GlobalAveragePooling2D(keepdims=True), scope.images(x)),)
    if cls is pooling.MaxPooling2D and window[0] * window[1] > pooling.LARGEST_WINDOW:
        return None
    return (run(cls(Pooling(window, stride, pad, bool(cover_all))), scope.images(x)),)


def _mean(scope, node, inputs):
    (x,) = inputs
    if x.ndim != 4 or not in_storage_dtype(x) or node.axis is None or {axis % 4 for axis in node.axis} != {2, 3}:
        return None
    return (run(pooling.GlobalAveragePooling2D(node.keepdims), scope.images(x)),)


def _dropout(scope, node, inputs):
    (x,) = inputs
    if node.mask is not None or node.return_mask or not (in_storage_dtype(x) and is_dense(x)):
        return None
    return (run_in_order_of(x, OurDropout(node.dropout_ratio), x),)


def _softmax_cross_entropy(scope, node, inputs):
    x, t = inputs
    if not in_storage_dtype(x) or t.dtype.kind != "i" or not (x.ndim == 2 or is_channels_last(x)):
        return None
    if x.ndim == 4:
        (x,) = chainer_apply(Transpose(TO_NHWC), (x,))
    return OurSoftmaxCrossEntropy(node.normalize, node.class_weight, node.ignore_label, node.reduce, 0.0).apply((x, t))


def _accuracy(scope, node, inputs):
    y, t = inputs
    if not in_storage_dtype(y) or y.ndim != 2 or t.ndim != 1 or t.dtype.kind != "i" or not len(y):
        return None
    if not (node.ignore_label is None or isinstance(node.ignore_label, numbers.Integral)):
        return None
    return (accuracy(y, t, node.ignore_label),)


RULES = {
    Accuracy: _accuracy,
    AveragePooling2D: _average_pooling,
    AveragePoolingND: _average_pooling_nd,
    BatchNormalization: _batch_normalization,
    Convolution2DFunction: _convolution,
    Deconvolution2DFunction: _deconvolution,
    Dropout: _dropout,
    FixedBatchNormalization: _fixed_batch_normalization,
    LinearFunction: _linear,
    LocalResponseNormalization: _local_response_normalization,
    MaxPoolingND: _max_pooling,
    Mean: _mean,
    SoftmaxCrossEntropy: _softmax_cross_entropy,
}
