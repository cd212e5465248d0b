"""The table behind test_chainer_behaviour.py: functions of Chainer that mixprec replaces, and what they compute.

Beside them stand products with numbers, whose dtype NumPy 2 has changed. A case is ``name: (function, reference,
inputs)``. The reference is the definition written with NumPy in float64; gradients are checked against its numerical
derivative. An input is a shape, with values in [-1.75, 2.25], or ``(shape, low, high)``.
"""

import math

import chainer.functions as F
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

A = (3, 4)
POSITIVE = (A, 0.3, 2.0)
LABELS = np.array([2, 0, 3], "int32")


def deconvolution(x, w, b):
    size = w.shape[2]
    x = np.pad(x, ((0, 0), (0, 0), (size - 1, size - 1), (size - 1, size - 1)))
    full = np.einsum("nchwij,coij->nohw", sliding_window_view(x, (size, size), (2, 3)), w[:, :, ::-1, ::-1])
    return full + b[:, None, None]


def normalize(x, axis, eps):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def local_response(x):
    square = np.pad(x**2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    total = sum(square[:, i : i + x.shape[1]] for i in range(5))
    return x / (2 + 0.1 * total) ** 0.75


def softmax_cross_entropy(x, t):
    return (np.log(np.exp(x).sum(1)) - x[np.arange(len(t)), t]).mean()


def margin(x, t):
    return np.maximum(0, 1 + np.where(np.arange(x.shape[1]) == t[:, None], -x, x))


def contrastive(a, b, t):
    d = np.sqrt(((a - b) ** 2).sum(1))
    return (t * d**2 + (1 - t) * np.maximum(1.5 - d, 0) ** 2).mean() / 2


FUNCTIONS = {
    "as_strided": (lambda x: F.as_strided(x, (3, 2), (1, 1), 0), lambda x: sliding_window_view(x, 2), [(4,)]),
    "pad_sequence": (
        lambda a, b: F.pad_sequence([a, b], padding=-1),
        lambda a, b: np.stack([a, np.pad(b, (0, 2), constant_values=-1)]),
        [(4,), (2,)],
    ),
    "spatial_transformer_grid": (
        lambda t: F.spatial_transformer_grid(t, (2, 3)),
        lambda t: np.einsum(
            "nij,jhw->nihw", t, [*np.meshgrid([-1.0, 1.0], [-1.0, 0.0, 1.0], indexing="ij")[::-1], np.ones((2, 3))]
        ),
        [(2, 2, 3)],
    ),
    "deconvolution_2d": (F.deconvolution_2d, deconvolution, [(2, 3, 3, 3), (3, 2, 2, 2), (2,)]),
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
    "gaussian_kl_divergence": (F.gaussian_kl_divergence, lambda m, v: ((m**2 + np.exp(v) - v - 1) / 2).sum(), [A, A]),
    "gaussian_nll": (
        F.gaussian_nll,
        lambda x, m, v: ((x - m) ** 2 * np.exp(-v) / 2 + (v + math.log(2 * math.pi)) / 2).sum(),
        [A, (A, -1.0, 1.0), (A, -0.5, 0.5)],
    ),
    "hinge": (lambda x: F.hinge(x, LABELS), lambda x: margin(x, LABELS).sum() / 3, [A]),
    "hinge L2": (lambda x: F.hinge(x, LABELS, norm="L2"), lambda x: (margin(x, LABELS) ** 2).sum() / 3, [A]),
    "mean_squared_error": (F.mean_squared_error, lambda a, b: ((a - b) ** 2).mean(), [A, A]),
    "softmax_cross_entropy": (
        lambda x: F.softmax_cross_entropy(x, LABELS),
        lambda x: softmax_cross_entropy(x, LABELS),
        [A],
    ),
    "triplet": (
        F.triplet,
        lambda a, p, n: np.maximum(((a - p) ** 2 - (a - n) ** 2).sum(1) + 0.2, 0).mean(),
        [A, A, (A, -1.0, 1.0)],
    ),
    "x + number": (lambda a: a + 0.1, lambda a: a + 0.1, [A]),
    "number - x": (lambda a: 1 - a, lambda a: 1 - a, [A]),
    "x * np.float64": (lambda a: a * np.float64(1.3), lambda a: a * 1.3, [A]),
    "np.float64 * x": (lambda a: np.float64(1.3) * a, lambda a: a * 1.3, [A]),
    "np.float32 / x": (lambda a: np.float32(1.5) / a, lambda a: 1.5 / a, [POSITIVE]),
    "average": (F.average, np.mean, [A]),
    "average with weights": (
        lambda x, w: F.average(x, 1, w),
        lambda x, w: (x * w).sum(1) / w.sum(),
        [A, ((4,), 0.5, 1.5)],
    ),
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
}
