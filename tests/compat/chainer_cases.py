"""The table behind test_chainer_behaviour.py: functions of Chainer and what they compute, in NumPy.

A case is ``name: (function, reference, inputs)``. The reference is the definition written with NumPy (SciPy for
special functions) in float64; gradients are checked against its numerical derivative. An input is a shape, with
values in [-1.75, 2.25], or ``(shape, low, high)``.
"""

import math

import chainer.functions as F
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

A, B = (3, 4), (2, 4)
IMAGE = (2, 3, 5, 6)
POSITIVE = (A, 0.3, 2.0)
UNIT = (A, -0.9, 0.9)
LABELS = np.array([2, 0, 3], "int32")
BITS = np.array([[0, 1, 1, 0], [1, 1, 0, -1], [0, 0, 1, 1]], "int32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def windows(x, size, stride=1, pad=0, fill=0.0):
    """Windows of the last two axes: (N, C, out_h, out_w, size, size)."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    return sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]


def convolution(x, w, b, stride=1, pad=0):
    y = np.einsum("nchwij,ocij->nohw", windows(x, w.shape[2], stride, pad), w)
    return y + b[:, None, None]


def deconvolution(x, w, b):
    full = np.einsum("nchwij,coij->nohw", windows(x, w.shape[2], 1, w.shape[2] - 1), w[:, :, ::-1, ::-1])
    return full + b[:, None, None]


def normalize(x, axis, eps):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def group_normalization(x, gamma, beta):
    y = normalize(x.reshape(2, 2, -1), 2, 1e-3).reshape(x.shape)
    return y * gamma[:, None, None] + beta[:, None, None]


def local_response(x):
    square = np.pad(x**2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    total = sum(square[:, i : i + x.shape[1]] for i in range(5))
    return x / (2 + 0.1 * total) ** 0.75


def lstm(c, x):
    a, i, f, o = (x.reshape(len(x), -1, 4)[:, :, k] for k in range(4))
    c = sigmoid(i) * np.tanh(a) + sigmoid(f) * c
    return np.concatenate([c, sigmoid(o) * np.tanh(c)], 1)


def scatter_rows(x, b):
    y = x.copy()
    np.add.at(y, [0, 2, 0], b)
    return y


def softmax_cross_entropy(x, t):
    return -np.log(softmax(x))[np.arange(len(t)), t].mean()


def sigmoid_cross_entropy(x, t):
    loss = np.log1p(np.exp(-np.abs(x))) - x * (t - (x >= 0))
    return loss[t != -1].sum() / (t != -1).sum()


def margin(x, t):
    return np.maximum(0, 1 + np.where(np.arange(x.shape[1]) == t[:, None], -x, x))


def contrastive(a, b, t):
    d = np.sqrt(((a - b) ** 2).sum(1))
    return (t * d**2 + (1 - t) * np.maximum(1.5 - d, 0) ** 2).mean() / 2


def select(t):
    return lambda x: x[np.arange(len(x)), t]


def cumulated(function):
    return lambda x: function(x, axis=1)


ACTIVATION = {
    "clipped_relu": (lambda x: F.clipped_relu(x, 1.0), lambda x: np.clip(x, 0, 1), [A]),
    "crelu": (F.crelu, lambda x: np.maximum(np.concatenate([x, -x], 1), 0), [A]),
    "elu": (lambda x: F.elu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), [A]),
    "hard_sigmoid": (F.hard_sigmoid, lambda x: np.clip(0.2 * x + 0.5, 0, 1), [(A, -4.0, 4.0)]),
    "leaky_relu": (F.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x), [A]),
    "log_softmax": (F.log_softmax, lambda x: np.log(softmax(x)), [A]),
    "lstm": (lambda c, x: F.concat(F.lstm(c, x)), lstm, [(2, 2), (2, 8)]),
    "maxout": (lambda x: F.maxout(x, 2), lambda x: x.reshape(3, 2, 2).max(2), [A]),
    "prelu": (F.prelu, lambda x, w: np.where(x > 0, x, w * x), [A, (4,)]),
    "relu": (F.relu, lambda x: np.maximum(x, 0), [A]),
    "relu6": (F.relu6, lambda x: np.clip(x, 0, 6), [(A, -3.0, 9.0)]),
    "selu": (
        F.selu,
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        [A],
    ),
    "sigmoid": (F.sigmoid, sigmoid, [A]),
    "softmax": (F.softmax, softmax, [A]),
    "softmax of axis 0": (lambda x: F.softmax(x, axis=0), lambda x: softmax(x, 0), [A]),
    "softplus": (lambda x: F.softplus(x, 2.0), lambda x: np.log1p(np.exp(2 * x)) / 2, [A]),
    "swish": (F.swish, lambda x, b: x * sigmoid(x * b), [A, (4,)]),
    "tanh": (F.tanh, np.tanh, [A]),
}

ARRAY = {
    "as_strided": (
        lambda x: F.as_strided(x, (3, 2), (1, 1), 0),
        lambda x: sliding_window_view(x, 2),
        [(4,)],
    ),
    "broadcast_to": (lambda x: F.broadcast_to(x, A), lambda x: np.broadcast_to(x, A), [(1, 4)]),
    "cast": (lambda x: F.cast(x, x.dtype), lambda x: x, [A]),
    "concat": (lambda a, b: F.concat([a, b], 0), lambda a, b: np.concatenate([a, b]), [A, B]),
    "depth2space": (
        lambda x: F.depth2space(x, 2),
        lambda x: x.reshape(1, 2, 2, 2, 3, 2).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 6, 4),
        [(1, 8, 3, 2)],
    ),
    "diagonal": (F.diagonal, np.diagonal, [A]),
    "dstack": (lambda a, b: F.dstack([a, b]), lambda a, b: np.dstack([a, b]), [A, A]),
    "expand_dims": (lambda x: F.expand_dims(x, 1), lambda x: x[:, None], [A]),
    "flatten": (F.flatten, np.ravel, [A]),
    "flip": (lambda x: F.flip(x, 1), lambda x: np.flip(x, 1), [A]),
    "fliplr": (F.fliplr, np.fliplr, [A]),
    "flipud": (F.flipud, np.flipud, [A]),
    "get_item": (lambda x: x[1:, ::2], lambda x: x[1:, ::2], [A]),
    "get_item of a list": (lambda x: x[[0, 2, 0]], lambda x: x[[0, 2, 0]], [A]),
    "hstack": (lambda a, b: F.hstack([a, b]), lambda a, b: np.hstack([a, b]), [A, A]),
    "im2col": (
        lambda x: F.im2col(x, 2),
        lambda x: windows(x, 2).transpose(0, 1, 4, 5, 2, 3).reshape(1, 8, 2, 3),
        [(1, 2, 3, 4)],
    ),
    "moveaxis": (lambda x: F.moveaxis(x, 0, 2), lambda x: np.moveaxis(x, 0, 2), [(2, 3, 4)]),
    "pad": (
        lambda x: F.pad(x, 1, "constant", constant_values=2.5),
        lambda x: np.pad(x, 1, constant_values=2.5),
        [A],
    ),
    "pad_sequence": (
        lambda a, b: F.pad_sequence([a, b], padding=-1),
        lambda a, b: np.stack([a, np.pad(b, (0, 2), constant_values=-1)]),
        [(4,), (2,)],
    ),
    "permutate": (lambda x: F.permutate(x, np.array([2, 0, 1])), lambda x: x[[2, 0, 1]], [A]),
    "repeat": (lambda x: F.repeat(x, 2, 1), lambda x: np.repeat(x, 2, 1), [A]),
    "reshape": (lambda x: F.reshape(x, (2, -1)), lambda x: x.reshape(2, 6), [A]),
    "rollaxis": (lambda x: F.rollaxis(x, 2), lambda x: np.rollaxis(x, 2), [(2, 3, 4)]),
    "scatter_add": (lambda x, b: F.scatter_add(x, [0, 2, 0], b), scatter_rows, [A, A]),
    "select_item": (lambda x: F.select_item(x, LABELS), select(LABELS), [A]),
    "separate": (lambda x: F.separate(x, 1)[1], lambda x: x[:, 1], [A]),
    "space2depth": (
        lambda x: F.space2depth(x, 2),
        lambda x: x.reshape(1, 2, 3, 2, 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 3, 2),
        [(1, 2, 6, 4)],
    ),
    "spatial_transformer_grid": (
        lambda t: F.spatial_transformer_grid(t, (2, 3)),
        lambda t: np.einsum(
            "nij,jhw->nihw", t, [*np.meshgrid([-1.0, 1.0], [-1.0, 0.0, 1.0], indexing="ij")[::-1], np.ones((2, 3))]
        ),
        [(2, 2, 3)],
    ),
    "split_axis": (lambda x: F.split_axis(x, [1], 1)[1], lambda x: x[:, 1:], [A]),
    "squeeze": (F.squeeze, np.squeeze, [(3, 1, 4)]),
    "stack": (lambda a, b: F.stack([a, b], 1), lambda a, b: np.stack([a, b], 1), [A, A]),
    "swapaxes": (lambda x: F.swapaxes(x, 0, 1), lambda x: x.swapaxes(0, 1), [A]),
    "tile": (lambda x: F.tile(x, (2, 1)), lambda x: np.tile(x, (2, 1)), [A]),
    "transpose": (F.transpose, np.transpose, [A]),
    "transpose_sequence": (
        lambda a, b: F.concat(F.transpose_sequence([a, b]), 0),
        lambda a, b: np.array([a[0], b[0], a[1], b[1], a[2]]),
        [(3,), (2,)],
    ),
    "vstack": (lambda a, b: F.vstack([a, b]), lambda a, b: np.vstack([a, b]), [A, B]),
    "where": (lambda a, b: F.where(BITS > 0, a, b), lambda a, b: np.where(BITS > 0, a, b), [A, A]),
}

CONNECTION = {
    "convolution_1d": (
        F.convolution_1d,
        lambda x, w, b: np.einsum("ncli,oci->nol", sliding_window_view(x, 3, 2), w) + b[:, None],
        [(2, 3, 6), (2, 3, 3), (2,)],
    ),
    "convolution_2d": (F.convolution_2d, convolution, [IMAGE, (4, 3, 3, 3), (4,)]),
    "convolution_2d with stride and pad": (
        lambda x, w, b: F.convolution_2d(x, w, b, 2, 1),
        lambda x, w, b: convolution(x, w, b, 2, 1),
        [IMAGE, (2, 3, 3, 3), (2,)],
    ),
    "convolution_2d in groups": (
        lambda x, w, b: F.convolution_2d(x, w, b, groups=2),
        lambda x, w, b: np.concatenate([convolution(x[:, g : g + 2], w[g : g + 2], b[g : g + 2]) for g in (0, 2)], 1),
        [(1, 4, 4, 4), (4, 2, 3, 3), (4,)],
    ),
    "deconvolution_2d": (F.deconvolution_2d, deconvolution, [(2, 3, 3, 3), (3, 2, 2, 2), (2,)]),
    "depthwise_convolution_2d": (
        F.depthwise_convolution_2d,
        lambda x, w: np.einsum("nchwij,ocij->ncohw", windows(x, 2), w).reshape(1, 4, 2, 2),
        [(1, 2, 3, 3), (2, 2, 2, 2)],
    ),
    "dilated_convolution_2d": (
        lambda x, w: F.dilated_convolution_2d(x, w, dilate=2),
        lambda x, w: np.einsum("nchwij,ocij->nohw", windows(x, 3)[..., ::2, ::2], w),
        [(1, 2, 4, 4), (2, 2, 2, 2)],
    ),
    "embed_id": (
        lambda w: F.embed_id(np.array([1, 0, 1], "int32"), w),
        lambda w: w[[1, 0, 1]],
        [A],
    ),
    "linear": (F.linear, lambda x, w, b: x @ w.T + b, [A, B, (2,)]),
    "local_convolution_2d": (
        F.local_convolution_2d,
        lambda x, w: np.einsum("nchwij,ohwcij->nohw", windows(x, 2), w),
        [(1, 2, 3, 3), (2, 2, 2, 2, 2, 2)],
    ),
}

LOSS = {
    "absolute_error": (F.absolute_error, lambda a, b: abs(a - b), [A, (A, 3.0, 4.0)]),
    "bernoulli_nll": (
        lambda x, y: F.bernoulli_nll(x, y),
        lambda x, y: (np.log1p(np.exp(y)) - x * y).sum(),
        [(A, 0.1, 0.9), A],
    ),
    "contrastive": (
        lambda a, b: F.contrastive(a, b, np.array([0, 1, 0], "int32"), 1.5),
        lambda a, b: contrastive(a, b, np.array([0, 1, 0])),
        [(A, -0.6, 0.6), (A, -0.4, 0.4)],
    ),
    "cross_covariance": (
        lambda a, b: F.cross_covariance(a, b),
        lambda a, b: (((a - a.mean(0)).T @ (b - b.mean(0)) / len(a)) ** 2).sum() / 2,
        [A, (3, 2)],
    ),
    "decov": (
        F.decov,
        lambda x: ((np.cov(x.T, bias=True) * (1 - np.eye(4))) ** 2).sum() / 2,
        [A],
    ),
    "gaussian_kl_divergence": (
        F.gaussian_kl_divergence,
        lambda m, v: ((m**2 + np.exp(v) - v - 1) / 2).sum(),
        [A, A],
    ),
    "gaussian_nll": (
        F.gaussian_nll,
        lambda x, m, v: ((x - m) ** 2 * np.exp(-v) / 2 + (v + math.log(2 * math.pi)) / 2).sum(),
        [A, (A, -1.0, 1.0), (A, -0.5, 0.5)],
    ),
    "hinge": (lambda x: F.hinge(x, LABELS), lambda x: margin(x, LABELS).sum() / 3, [A]),
    "hinge L2": (
        lambda x: F.hinge(x, LABELS, norm="L2"),
        lambda x: (margin(x, LABELS) ** 2).sum() / 3,
        [A],
    ),
    "huber_loss": (
        lambda a, b: F.huber_loss(a, b, 0.7),
        lambda a, b: np.where(abs(a - b) < 0.7, (a - b) ** 2 / 2, 0.7 * (abs(a - b) - 0.35)).sum(1),
        [A, (A, -1.0, 1.0)],
    ),
    "mean_absolute_error": (F.mean_absolute_error, lambda a, b: abs(a - b).mean(), [A, (A, 3.0, 4.0)]),
    "mean_squared_error": (F.mean_squared_error, lambda a, b: ((a - b) ** 2).mean(), [A, A]),
    "sigmoid_cross_entropy": (
        lambda x: F.sigmoid_cross_entropy(x, BITS),
        lambda x: sigmoid_cross_entropy(x, BITS),
        [A],
    ),
    "softmax_cross_entropy": (
        lambda x: F.softmax_cross_entropy(x, LABELS),
        lambda x: softmax_cross_entropy(x, LABELS),
        [A],
    ),
    "softmax_cross_entropy with double backprop": (
        lambda x: F.softmax_cross_entropy(x, LABELS, enable_double_backprop=True),
        lambda x: softmax_cross_entropy(x, LABELS),
        [A],
    ),
    "squared_error": (F.squared_error, lambda a, b: (a - b) ** 2, [A, A]),
    "triplet": (
        F.triplet,
        lambda a, p, n: np.maximum(((a - p) ** 2 - (a - n) ** 2).sum(1) + 0.2, 0).mean(),
        [A, A, (A, -1.0, 1.0)],
    ),
}

ELEMENTWISE = {
    "absolute": (F.absolute, abs, [A]),
    "arccos": (F.arccos, np.arccos, [UNIT]),
    "arcsin": (F.arcsin, np.arcsin, [UNIT]),
    "arctan": (F.arctan, np.arctan, [A]),
    "arctan2": (F.arctan2, np.arctan2, [A, POSITIVE]),
    "arctanh": (F.arctanh, np.arctanh, [(A, -0.8, 0.8)]),
    "clip": (lambda x: F.clip(x, -0.75, 1.0), lambda x: np.clip(x, -0.75, 1), [A]),
    "cos": (F.cos, np.cos, [A]),
    "cosh": (F.cosh, np.cosh, [A]),
    "exp": (F.exp, np.exp, [A]),
    "expm1": (F.expm1, np.expm1, [A]),
    "fmod": (F.fmod, np.fmod, [(A, 0.1, 0.6), (A, 1.0, 2.0)]),
    "linear_interpolate": (F.linear_interpolate, lambda p, a, b: p * a + (1 - p) * b, [A, A, A]),
    "log": (F.log, np.log, [POSITIVE]),
    "log10": (F.log10, np.log10, [POSITIVE]),
    "log1p": (F.log1p, np.log1p, [POSITIVE]),
    "log2": (F.log2, np.log2, [POSITIVE]),
    "maximum": (F.maximum, np.maximum, [A, (A, -1.0, 1.5)]),
    "minimum": (F.minimum, np.minimum, [A, (A, -1.0, 1.5)]),
    "rsqrt": (F.rsqrt, lambda x: 1 / np.sqrt(x), [POSITIVE]),
    "sin": (F.sin, np.sin, [A]),
    "sinh": (F.sinh, np.sinh, [A]),
    "sqrt": (F.sqrt, np.sqrt, [POSITIVE]),
    "square": (F.square, np.square, [A]),
    "squared_difference": (F.squared_difference, lambda a, b: (a - b) ** 2, [A, A]),
    "tan": (F.tan, np.tan, [(A, -1.0, 1.0)]),
    "x + y": (lambda a, b: a + b, lambda a, b: a + b, [A, A]),
    "x - y": (lambda a, b: a - b, lambda a, b: a - b, [A, A]),
    "x * y": (lambda a, b: a * b, lambda a, b: a * b, [A, A]),
    "x / y": (lambda a, b: a / b, lambda a, b: a / b, [A, POSITIVE]),
    "x ** y": (lambda a, b: a**b, lambda a, b: a**b, [POSITIVE, A]),
    "-x": (lambda a: -a, lambda a: -a, [A]),
    "x + number": (lambda a: a + 0.1, lambda a: a + 0.1, [A]),
    "number - x": (lambda a: 1 - a, lambda a: 1 - a, [A]),
    "x * np.float64": (lambda a: a * np.float64(1.3), lambda a: a * 1.3, [A]),
    "np.float64 * x": (lambda a: np.float64(1.3) * a, lambda a: a * 1.3, [A]),
    "np.float32 / x": (lambda a: np.float32(1.5) / a, lambda a: 1.5 / a, [POSITIVE]),
    "x ** number": (lambda a: a**3, lambda a: a**3, [A]),
    "number ** x": (lambda a: 1.5**a, lambda a: 1.5**a, [A]),
}

REDUCTION = {
    "average": (F.average, np.mean, [A]),
    "average with weights": (
        lambda x, w: F.average(x, 1, w),
        lambda x, w: (x * w).sum(1) / w.sum(),
        [A, ((4,), 0.5, 1.5)],
    ),
    "batch_l2_norm_squared": (F.batch_l2_norm_squared, lambda x: (x**2).sum(1), [A]),
    "bias": (F.bias, lambda x, b: x + b, [A, (4,)]),
    "cumprod": (lambda x: F.cumprod(x, 1), cumulated(np.cumprod), [(A, 0.5, 1.5)]),
    "cumsum": (lambda x: F.cumsum(x, 1), cumulated(np.cumsum), [A]),
    "einsum": (lambda a, b: F.einsum("ij,kj->ik", a, b), lambda a, b: a @ b.T, [A, B]),
    "logsumexp": (lambda x: F.logsumexp(x, 1), lambda x: np.log(np.exp(x).sum(1)), [A]),
    "matmul": (F.matmul, np.matmul, [A, (4, 2)]),
    "matmul of batches": (F.matmul, np.matmul, [(2, 3, 4), (2, 4, 2)]),
    "matmul transposed": (
        lambda a, b: F.matmul(a, b, transa=True, transb=True),
        lambda a, b: a.T @ b.T,
        [A, (2, 3)],
    ),
    "max": (lambda x: F.max(x, 1), lambda x: x.max(1), [A]),
    "mean": (lambda x: F.mean(x, 0, keepdims=True), lambda x: x.mean(0, keepdims=True), [A]),
    "min": (lambda x: F.min(x, 1), lambda x: x.min(1), [A]),
    "prod": (lambda x: F.prod(x, 1), lambda x: x.prod(1), [(A, 0.5, 1.5)]),
    "scale": (F.scale, lambda x, w: x * w, [A, (4,)]),
    "sum": (F.sum, np.sum, [A]),
    "sum of an axis": (lambda x: F.sum(x, 1), lambda x: x.sum(1), [A]),
    "sum_to": (lambda x: F.sum_to(x, (1, 4)), lambda x: x.sum(0, keepdims=True), [A]),
    "tensordot": (lambda a, b: F.tensordot(a, b, 1), lambda a, b: np.tensordot(a, b, 1), [A, (4, 2)]),
}

NORMALIZATION = {
    "batch_normalization": (
        lambda x, g, b: F.batch_normalization(x, g, b, eps=1e-3),
        lambda x, g, b: normalize(x, 0, 1e-3) * g + b,
        [(6, 4), (4,), (4,)],
    ),
    "batch_normalization of images": (
        lambda x, g, b: F.batch_normalization(x, g, b, eps=1e-3),
        lambda x, g, b: normalize(x, (0, 2, 3), 1e-3) * g[:, None, None] + b[:, None, None],
        [(2, 2, 3, 3), (2,), (2,)],
    ),
    "fixed_batch_normalization": (
        lambda x, g, b, m, v: F.fixed_batch_normalization(x, g, b, m, v, eps=1e-3),
        lambda x, g, b, m, v: (x - m) / np.sqrt(v + 1e-3) * g + b,
        [A, (4,), (4,), (4,), ((4,), 0.5, 1.5)],
    ),
    "group_normalization": (
        lambda x, g, b: F.group_normalization(x, 2, g, b, eps=1e-3),
        group_normalization,
        [(2, 4, 2, 3), (4,), (4,)],
    ),
    "layer_normalization": (
        lambda x, g, b: F.layer_normalization(x, g, b, eps=1e-3),
        lambda x, g, b: normalize(x, 1, 1e-3) * g + b,
        [A, (4,), (4,)],
    ),
    "local_response_normalization": (
        lambda x: F.local_response_normalization(x, 5, 2.0, 0.1, 0.75),
        local_response,
        [(1, 6, 2, 2)],
    ),
    "normalize": (
        F.normalize,
        lambda x: x / (np.sqrt((x**2).sum(1, keepdims=True)) + 1e-5),
        [A],
    ),
}

POOLING = {
    "average_pooling_2d": (
        lambda x: F.average_pooling_2d(x, 2, 2, 0),
        lambda x: windows(x, 2, 2).mean((4, 5)),
        [(1, 2, 4, 6)],
    ),
    "average_pooling_1d": (
        lambda x: F.average_pooling_1d(x, 2, 1),
        lambda x: sliding_window_view(x, 2, 2).mean(-1),
        [(1, 2, 5)],
    ),
    "average_pooling_3d": (
        lambda x: F.average_pooling_3d(x, 2, 2),
        lambda x: x.reshape(1, 2, 1, 2, 2, 2, 1, 2).mean((3, 5, 7)),
        [(1, 2, 2, 4, 2)],
    ),
    "global_average": (lambda x: F.mean(x, (2, 3)), lambda x: x.mean((2, 3)), [IMAGE]),
    "max_pooling_2d": (
        lambda x: F.max_pooling_2d(x, 3, 2, 1, cover_all=False),
        lambda x: windows(x, 3, 2, 1, -np.inf).max((4, 5)),
        [(1, 2, 4, 6)],
    ),
    "max_pooling_1d": (
        lambda x: F.max_pooling_1d(x, 2, 1),
        lambda x: sliding_window_view(x, 2, 2).max(-1),
        [(1, 2, 5)],
    ),
    "max_pooling_3d": (
        lambda x: F.max_pooling_3d(x, 2, 2),
        lambda x: x.reshape(1, 2, 1, 2, 2, 2, 1, 2).max((3, 5, 7)),
        [(1, 2, 2, 4, 2)],
    ),
    "spatial_pyramid_pooling_2d": (
        lambda x: F.spatial_pyramid_pooling_2d(x, 2, "max"),
        lambda x: np.concatenate([x.max((2, 3)), x.reshape(1, 2, 2, 2, 2, 2).max((3, 5)).reshape(1, 8)], 1)[
            :, :, None, None
        ],
        [(1, 2, 4, 4)],
    ),
    "unpooling_2d": (
        lambda x: F.unpooling_2d(x, 2, 2, cover_all=False),
        lambda x: x.repeat(2, 2).repeat(2, 3),
        [(1, 2, 3, 2)],
    ),
}


def special():
    """Cases that need SciPy."""
    import scipy.special as S

    return {
        "digamma": (F.digamma, S.digamma, [POSITIVE]),
        "erf": (F.erf, S.erf, [A]),
        "erfc": (F.erfc, S.erfc, [A]),
        "erfcx": (F.erfcx, S.erfcx, [A]),
        "erfinv": (F.erfinv, S.erfinv, [(A, -0.8, 0.8)]),
        "lgamma": (F.lgamma, S.gammaln, [(A, 1.2, 4.0)]),
        "log_ndtr": (F.log_ndtr, S.log_ndtr, [A]),
        "ndtr": (F.ndtr, S.ndtr, [A]),
        "ndtri": (F.ndtri, S.ndtri, [(A, 0.1, 0.9)]),
    }


FUNCTIONS = {
    **ACTIVATION,
    **ARRAY,
    **CONNECTION,
    **LOSS,
    **ELEMENTWISE,
    **REDUCTION,
    **NORMALIZATION,
    **POOLING,
}
