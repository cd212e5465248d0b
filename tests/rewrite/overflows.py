"""Inputs on which functions of Chainer overflow if they add up, or multiply up, in float16.

All numbers are float16 numbers, so that plain Chainer in float32 has the same inputs as a converted model.
"""

from typing import NamedTuple

import chainer.functions as F
import numpy as np
from chainer import utils

LARGEST = 65504.0  # of float16


class Case(NamedTuple):
    """A function of variables, what it is applied to, and the gradient of its result, which is one if not given."""

    function: object
    inputs: tuple
    gradient: object = None
    differentiable: bool = True


def full(*shape, value=300.0):
    """Equal numbers: the sum of a few hundred, and of one or two squares, is beyond float16."""
    return np.full(shape, value, np.float32)


def _mostly_up(*shape):
    """Numbers of which the first rows add up beyond float16, and the last ones take half of it back."""
    return np.where(np.indices(shape)[0] < shape[0] * 2 / 3, 60000, -60000).astype(np.float32)


def wave(*shape):
    """Numbers whose partial sums are beyond float16, though the sum of each four is not, in both directions of C."""
    steps = np.array([40000, 40000, -40000, -38912], np.float32)
    places = sum(np.indices(shape)[axis] for axis in range(len(shape)))
    return steps[places % 4]


def _random(*shape, scale=1.0):
    return (np.random.RandomState(0).normal(size=shape) * scale).astype(np.float16).astype(np.float32)


def _positive(*shape):
    return np.abs(_random(*shape)) + 1


def _labels(*shape, classes=3):
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape) % classes


def _of_waves(function, *shape):
    """A function that copies elements, of which the gradient adds up waves."""
    return Case(function, (full(*shape, value=1.0),), wave)


def _product(function, *shapes):
    """A product of matrices: all sums are of four numbers +-40000, times one."""
    first, *rest = shapes
    return Case(
        function, (wave(*first), *(full(*shape, value=1.0) for shape in rest)), lambda *shape: full(*shape, value=1.0)
    )


def _tiny(*shape):
    return full(*shape, value=2.0**-20)


def _loss(function, *inputs):
    return Case(function, inputs, _tiny)


_ROIS = np.array([[0, 0, 0, 7, 7], [0, 0, 0, 7, 7], [0, 0, 0, 5, 5], [0, 0, 0, 7, 7]], np.float32)
_ROIS_INDICES = np.zeros(4, np.int32)


_ROI_IMAGES = full(1, 2, 8, 8, value=60000.0)


def _there_and_back(*shape):
    """A gradient for four regions, of which the first two add up beyond float16, and the others take it back."""
    return full(*shape) * np.array([200, 200, -200, -200], np.float32).reshape(4, 1, 1, 1)


def _roi(function):
    def run(x):
        return function(x, _ROIS[:, [2, 1, 4, 3]].astype(x.dtype), _ROIS_INDICES, outsize=2, spatial_scale=1.0)

    return Case(run, (_ROI_IMAGES,), _there_and_back)


def _crf(function):
    def run(x, cost):
        return function(cost, [x[0], x[1], x[2], x[3]], [_labels(2)] * 4)

    return run


def _normalized(function, *parameters):
    return Case(lambda x, *rest: function(x, *rest), (_random(8, 16, scale=20000.0), *parameters))


_ONES, _ZEROS = np.ones(16, np.float32), np.zeros(16, np.float32)

CASES = {
    # sums and products
    "sum": Case(F.sum, (full(500),)),
    "sum_to": Case(lambda x: F.sum_to(x, (1, 5)), (full(500, 5),)),
    "average": Case(F.average, (full(500),)),
    "average with weights": Case(lambda x, w: F.average(x, 0, w), (full(400), full(400))),
    "mean": Case(lambda x: F.mean(x, axis=1), (full(5, 500),)),
    "cumsum": Case(F.cumsum, (full(500),)),
    "cumprod": Case(F.cumprod, (full(3),), _tiny),
    "prod": Case(F.prod, (full(3),), _tiny),
    "logsumexp": Case(F.logsumexp, (_random(5, 5, scale=20.0),)),
    "batch_l2_norm_squared": Case(F.batch_l2_norm_squared, (full(3, 5),)),
    "einsum": Case(lambda x, y: F.einsum("ij,ij->i", x, y), (full(3, 5), full(3, 5))),
    "einsum of two matrices": Case(lambda x, y: F.einsum("ij,jk->ik", x, y), (full(3, 5), full(5, 2))),
    "einsum with an ellipsis": Case(lambda x: F.einsum("...j->...", x), (full(3, 2, 500),), differentiable=False),
    "einsum that broadcasts": _of_waves(lambda x: F.einsum("i,j->ij", x, np.ones(4, x.dtype)), 4),
    "add": Case(lambda x: F.add(x[0], x[1], x[2]), (wave(3, 4),)),
    "fft": Case(lambda x: F.fft((x, x))[0], (full(500),)),
    "ifft": Case(lambda x: F.ifft((x, x))[0], (full(500),)),
    "det": Case(F.det, (np.diag(full(3)),), _tiny),
    "batch_det": Case(F.batch_det, (np.diag(full(3))[None],), _tiny),
    "inv": Case(F.inv, (np.diag(full(3, value=2.0**-17)),), _tiny),
    "batch_inv": Case(F.batch_inv, (np.diag(full(3, value=2.0**-17))[None],), _tiny),
    "cholesky": Case(F.cholesky, (np.diag(full(3, value=256.0)) + 1,)),
    "forget": Case(lambda x: F.forget(lambda h: F.sum(h), x), (full(500),)),
    # exponentials and logarithms
    "exp": Case(F.exp, (full(3, value=20.0),), _tiny),
    "expm1": Case(F.expm1, (full(3, value=20.0),), _tiny),
    "cosh": Case(F.cosh, (full(3, value=20.0),), _tiny),
    "sinh": Case(F.sinh, (full(3, value=20.0),), _tiny),
    "power of two": Case(lambda x: 2**x, (full(3, value=20.0),), _tiny),
    "lgamma": Case(F.lgamma, (full(3, value=40000.0),), _tiny),
    "log_ndtr": Case(F.log_ndtr, (full(3, value=-500.0),), _tiny),
    "gaussian": Case(lambda m, v: F.gaussian(m, v, eps=np.ones(3, m.dtype)), (full(3), full(3, value=24.0)), _tiny),
    # softmax and normalizations
    "softmax": Case(F.softmax, (_random(4, 9, scale=20000.0),), lambda *shape: full(*shape, value=30000.0)),
    "log_softmax": Case(F.log_softmax, (_random(4, 9, scale=20000.0),)),
    "normalize": Case(F.normalize, (_random(8, 6, scale=20000.0),)),
    "batch_normalization": _normalized(F.batch_normalization, _ONES, _ZEROS),
    "fixed_batch_normalization": _normalized(F.fixed_batch_normalization, _ONES, _ZEROS, _ZEROS, _ONES * 20000),
    "batch_renormalization": _normalized(
        lambda x, g, b: F.batch_renormalization(
            x, g, b, 3.0, 5.0, running_mean=_ZEROS.copy(), running_var=_ONES.copy()
        ),
        _ONES,
        _ZEROS,
    ),
    "fixed_batch_renormalization": _normalized(F.fixed_batch_renormalization, _ONES, _ZEROS, _ZEROS, _ONES * 20000),
    "layer_normalization": _normalized(F.layer_normalization, _ONES, _ZEROS),
    "group_normalization": _normalized(lambda x, g, b: F.group_normalization(x, 2, g, b), _ONES, _ZEROS),
    "decorrelated_batch_normalization": _normalized(F.decorrelated_batch_normalization),
    "fixed_decorrelated_batch_normalization": _normalized(
        lambda x: F.fixed_decorrelated_batch_normalization(
            x, _ZEROS[None], np.eye(16, dtype=np.float32)[None], groups=1
        )
    ),
    "local_response_normalization": Case(F.local_response_normalization, (full(1, 8, 3, 3, value=2000.0),)),
    # products of matrices
    "matmul": _product(F.matmul, (3, 8), (8, 5)),
    "batch_matmul": _product(F.batch_matmul, (2, 3, 8), (2, 8, 5)),
    "tensordot": _product(lambda x, y: F.tensordot(x, y, 1), (3, 8), (8, 5)),
    "linear": _product(F.linear, (3, 8), (5, 8)),
    "bilinear": Case(
        lambda x, y, W: F.bilinear(x, y, W), (wave(3, 8), full(3, 1, value=1.0), full(8, 1, 2, value=1.0))
    ),
    "sparse_matmul": Case(
        lambda x, y: F.sparse_matmul(utils.to_coo(x.array, requires_grad=True), y), (wave(3, 8), full(8, 2, value=1.0))
    ),
    "simplified_dropconnect": _product(
        lambda x, W: F.simplified_dropconnect(x, W, ratio=0.5, mask=np.ones((3, 5, 8), bool)) * 0.5, (3, 8), (5, 8)
    ),
    "convolution_1d": _product(F.convolution_1d, (1, 2, 8), (3, 2, 4)),
    "convolution_2d": _product(F.convolution_2d, (1, 2, 8, 8), (3, 2, 4, 4)),
    "convolution_3d": _product(F.convolution_3d, (1, 1, 4, 4, 4), (3, 1, 4, 4, 4)),
    "convolution_nd": _product(F.convolution_nd, (1, 2, 8, 8), (3, 2, 4, 4)),
    "deconvolution_1d": _product(F.deconvolution_1d, (1, 4, 8), (4, 2, 4)),
    "deconvolution_2d": _product(F.deconvolution_2d, (1, 4, 8, 8), (4, 2, 4, 4)),
    "deconvolution_3d": _product(F.deconvolution_3d, (1, 4, 3, 3, 3), (4, 1, 1, 1, 1)),
    "deconvolution_nd": _product(F.deconvolution_nd, (1, 4, 8, 8), (4, 2, 4, 4)),
    "depthwise_convolution_2d": _product(F.depthwise_convolution_2d, (1, 2, 8, 8), (3, 2, 4, 4)),
    "dilated_convolution_2d": _product(
        lambda x, W: F.dilated_convolution_2d(x, W, dilate=3), (1, 2, 12, 12), (3, 2, 4, 4)
    ),
    "local_convolution_2d": _product(F.local_convolution_2d, (1, 1, 5, 5), (2, 2, 2, 1, 4, 4)),
    "deformable_convolution_2d_sampler": _product(
        lambda x, W: F.deformable_convolution_2d_sampler(x, np.zeros((1, 32, 5, 5), x.dtype), W),
        (1, 2, 8, 8),
        (3, 2, 4, 4),
    ),
    # poolings
    "average_pooling_1d": Case(lambda x: F.average_pooling_1d(x, 4), (full(1, 2, 8, value=40000.0),)),
    "average_pooling_2d": Case(lambda x: F.average_pooling_2d(x, 4), (full(1, 2, 8, 8, value=40000.0),)),
    "average_pooling_3d": Case(lambda x: F.average_pooling_3d(x, 4), (full(1, 1, 4, 4, 4, value=40000.0),)),
    "average_pooling_nd": Case(lambda x: F.average_pooling_nd(x, 4), (full(1, 2, 8, 8, value=40000.0),)),
    "max_pooling_1d": Case(lambda x: F.max_pooling_1d(x, 4, 1), (_positive(1, 2, 9),), wave),
    "max_pooling_2d": Case(lambda x: F.max_pooling_2d(x, 4, 1), (_positive(1, 2, 9, 9),), wave),
    "max_pooling_3d": Case(lambda x: F.max_pooling_3d(x, 2, 1), (_positive(1, 1, 4, 4, 4),), wave),
    "max_pooling_nd": Case(lambda x: F.max_pooling_nd(x, 4, 1), (_positive(1, 2, 9, 9),), wave),
    "unpooling_1d": Case(lambda x: F.unpooling_1d(x, 3, 1), (full(1, 2, 8, value=30000.0),)),
    "unpooling_2d": Case(lambda x: F.unpooling_2d(x, 3, 1), (full(1, 2, 8, 8, value=30000.0),)),
    "unpooling_3d": Case(lambda x: F.unpooling_3d(x, 2, 1), (full(1, 1, 4, 4, 4, value=30000.0),)),
    "unpooling_nd": Case(lambda x: F.unpooling_nd(x, 3, 1), (full(1, 2, 8, 8, value=30000.0),)),
    "upsampling_2d": Case(
        lambda x: F.upsampling_2d(x, np.full((1, 2, 4, 4), 4, np.int32) - _labels(1, 2, 4, 4, classes=2), 3, 1),
        (full(1, 2, 4, 4, value=40000.0),),
    ),
    "roi_pooling_2d": Case(
        lambda x: F.roi_pooling_2d(x, _ROIS.astype(x.dtype), 2, 2, 1.0), (_ROI_IMAGES,), _there_and_back
    ),
    "roi_average_align_2d": _roi(F.roi_average_align_2d),
    "roi_average_pooling_2d": _roi(F.roi_average_pooling_2d),
    "roi_max_align_2d": _roi(F.roi_max_align_2d),
    "roi_max_pooling_2d": _roi(F.roi_max_pooling_2d),
    # copies, whose gradient is a sum
    "as_strided": _of_waves(lambda x: F.as_strided(x, (8, 4), (0, 1)), 4),
    "broadcast": _of_waves(lambda x: F.broadcast(x, np.ones((8, 4), x.dtype))[0], 4),
    "broadcast_to": _of_waves(lambda x: F.broadcast_to(x, (8, 4)), 4),
    "bias": Case(lambda x, b: F.bias(x, b), (full(8, 4, value=1.0), full(4, value=1.0)), wave),
    "scale": Case(lambda x, b: F.scale(x, b), (full(8, 4, value=1.0), full(4, value=1.0)), wave),
    "embed_id": Case(lambda W: F.embed_id(np.repeat(_labels(3), 4), W), (full(3, 4, value=1.0),), wave),
    "get_item": _of_waves(lambda x: F.get_item(x, np.repeat(_labels(3), 4)), 3, 4),
    "im2col": _of_waves(lambda x: F.im2col(x, 3), 1, 1, 8, 8),
    "repeat": _of_waves(lambda x: F.repeat(x, 4, axis=0), 3, 4),
    "repeat by numbers": _of_waves(lambda x: F.repeat(x, (4, 8, 4), axis=0), 3, 4),
    "tile": _of_waves(lambda x: F.tile(x, (4, 3)), 3, 3),
    "prelu": Case(lambda x, W: F.prelu(x, W), (-full(8, 4, value=1.0), full(4, value=1.0)), wave),
    "swish": Case(lambda x, b: F.swish(x, b), (full(12, 4, value=1.0), full(4, value=1.0)), _mostly_up),
    "scatter_add": Case(
        lambda x, b: F.scatter_add(x, np.zeros(4, int), b), (full(3, value=1.0), full(4, value=40000.0))
    ),
    "spatial_transformer_grid": Case(
        lambda theta: F.spatial_transformer_grid(theta, (8, 8)), (full(1, 2, 3, value=1.0),), wave
    ),
    "spatial_transformer_sampler": Case(
        lambda x, g: F.spatial_transformer_sampler(x, g), (full(1, 2, 8, 8), full(1, 2, 4, 4, value=0.0)), wave
    ),
    "resize_images": Case(lambda x: F.resize_images(x, (8, 8)), (full(1, 2, 2, 2, value=60000.0),), wave),
    # losses and metrics
    "absolute_error": _loss(F.absolute_error, full(4, 3, value=60000.0), full(4, 3, value=-60000.0)),
    "squared_error": _loss(F.squared_error, full(4, 3), -full(4, 3)),
    "mean_squared_error": _loss(F.mean_squared_error, full(4, 3), -full(4, 3)),
    "mean_absolute_error": _loss(F.mean_absolute_error, full(4, 3, value=60000.0), full(4, 3, value=-60000.0)),
    "huber_loss": _loss(lambda x, t: F.huber_loss(x, t, 300.0), full(4, 3, value=600.0), -full(4, 3)),
    "bernoulli_nll": _loss(F.bernoulli_nll, full(4, 300, value=1.0), full(4, 300, value=-300.0)),
    "gaussian_kl_divergence": _loss(F.gaussian_kl_divergence, full(4, 3), full(4, 3, value=1.0)),
    "gaussian_nll": _loss(F.gaussian_nll, full(4, 3), -full(4, 3), full(4, 3, value=1.0)),
    "contrastive": _loss(lambda x, y: F.contrastive(x, y, _labels(4, classes=2)), full(4, 3), -full(4, 3)),
    "triplet": _loss(F.triplet, full(4, 3), -full(4, 3), full(4, 3, value=500.0)),
    "hinge": _loss(lambda x: F.hinge(x, _labels(4), norm="L2"), full(4, 3)),
    "cross_covariance": _loss(F.cross_covariance, _random(8, 3, scale=300.0), _random(8, 2, scale=300.0)),
    "decov": _loss(F.decov, _random(8, 3, scale=20.0)),
    "softmax_cross_entropy": _loss(lambda x: F.softmax_cross_entropy(x, _labels(4)), _random(4, 3, scale=20000.0)),
    "sigmoid_cross_entropy": _loss(
        lambda x: F.sigmoid_cross_entropy(x, _labels(4, 300, classes=2), reduce="no"), _random(4, 300, scale=20000.0)
    ),
    "discriminative_margin_based_clustering_loss": _loss(
        lambda x: sum(F.discriminative_margin_based_clustering_loss(x, _labels(4, 8, 8), 0.5, 1.5, 4, norm=1)),
        _random(4, 4, 8, 8, scale=300.0),
    ),
    "crf1d": _loss(_crf(F.crf1d), full(4, 2, 3, value=30000.0), _random(3, 3, scale=20000.0)),
    "argmax_crf1d": Case(
        _crf(lambda cost, xs, ys: F.argmax_crf1d(cost, xs)[0]),
        (full(4, 2, 3, value=30000.0), _random(3, 3)),
        differentiable=False,
    ),
    "connectionist_temporal_classification": _loss(
        lambda x: F.connectionist_temporal_classification([x[0], x[1], x[2], x[3]], _labels(2, 2) + 1, 0),
        _random(4, 2, 5, scale=20.0),
    ),
    "negative_sampling": _loss(
        lambda x, W: F.negative_sampling(x, _labels(4), W, lambda shape: np.zeros(shape, np.int32), 2),
        full(4, 3, value=5.0),
        -full(5, 3, value=5.0),
    ),
    "black_out": _loss(
        lambda x, W: F.black_out(x, _labels(4), W, np.full((4, 2), 4, np.int32)),
        full(4, 3),
        np.diag(full(5, value=1.0))[:, :3] * 300 - 300,
    ),
    "accuracy": Case(lambda x: F.accuracy(x, _labels(70000)), (full(70000, 3),), differentiable=False),
    "binary_accuracy": Case(
        lambda x: F.binary_accuracy(x, np.ones(70000, np.int32)), (full(70000),), differentiable=False
    ),
    "classification_summary": Case(
        lambda x: F.classification_summary(x, _labels(3000))[0], (_random(3000, 3),), differentiable=False
    ),
    "f1_score": Case(lambda x: F.f1_score(x, _labels(3000))[0], (_random(3000, 3),), differentiable=False),
    "precision": Case(lambda x: F.precision(x, _labels(3000))[0], (_random(3000, 3),), differentiable=False),
    "recall": Case(lambda x: F.recall(x, _labels(3000))[0], (_random(3000, 3),), differentiable=False),
    "r2_score": Case(
        F.r2_score, (_random(500, scale=300.0), _random(500, 1, scale=300.0)[:, 0] * 2), differentiable=False
    ),
}
