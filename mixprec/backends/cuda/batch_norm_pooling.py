"""Batch normalization, ReLU and max pooling in one on CUDA, without intermediate arrays of the size of x."""

import math

import numpy as np

from mixprec.backends.cuda.batch_norm_kernels import BatchNormKernels, by_batch

_BACKWARD = "batch_norm_pooling_backward"


class BatchNormPoolings(BatchNormKernels):
    """The batch normalizations before a max pooling of :class:`~mixprec.backends.primitives.Primitives`.

    Own kernels compute normalizations with a ReLU before windows of 3x3 with a stride of 2 and a padding of at most 1,
    as in every ResNet. Everything else is composed of the two.
    """

    def batch_norm_max_pool(self, one, pooling):
        if not _has_kernels(one, pooling):
            return super().batch_norm_max_pool(one, pooling)
        x, saved = one.x, self._saved_of(one)
        places = pooling.out_size(x.shape[1:3])
        shape = x.shape[0], *places, x.shape[3]
        y, where = self._empty(shape, x.dtype), self._empty(shape, np.uint8)
        after = [*_images(x.shape, pooling, places), *by_batch(one, saved), float(math.prod(x.shape[:3]))]
        self._run_rows("batch_norm_pooling", "batch_norm_max_pool", [x, y, where], after, [y, x, where])
        return y, where, saved

    def batch_norm_max_pool_backward(self, dy, where, one, saved, pooling, *, plus=None):
        if not _has_kernels(one, pooling):
            return super().batch_norm_max_pool_backward(dy, where, one, saved, pooling, plus=plus)
        x, gamma = one.x, one.gamma
        dx, found = self._empty(x.shape, x.dtype), [self._per_channel(gamma) for _ in range(4)]
        # Squares that are not all padding before the image
        places = [(size - 1 + pad) // 2 + 1 for size, pad in zip(x.shape[1:3], pooling.pad, strict=True)]
        rows, images = x.shape[0] * math.prod(places), _images(x.shape, pooling, places)
        how, macros = [gamma, one.beta, saved.mean, saved.invstd], (("PLUS", int(plus is not None)),)
        read, dense = [dy, plus, where, x], [x, dx, dy, plus, where]
        after = [*images, *self._parts(x, rows=rows), *how, float(math.prod(x.shape[:3])), *found]
        self._run_rows(_BACKWARD, "batch_norm_max_pool_backward_sums", read, after, dense, macros, rows)
        after = [*images, *how, *found[2:]]
        self._run_rows(_BACKWARD, "batch_norm_max_pool_backward_apply", [*read, dx], after, dense, macros, rows)
        return dx, *found[:2]


def _has_kernels(one, pooling):
    places = one.x.shape[:3]
    is_usual = (pooling.window, pooling.stride) == ((3, 3), (2, 2)) and max(pooling.pad) <= 1 and one.attributes.relu
    return is_usual and min(pooling.out_size(places[1:])) > 0 and math.prod(places) < 2**31  # see _reciprocal


def _images(shape, pooling, places):
    """Returns the arguments of a kernel whose rows are pixels of images x of shape (N, H, W, C)."""
    of_lines, of_places = map(_reciprocal, places)
    sizes = [*shape[1:3], *pooling.out_size(shape[1:3]), *pooling.pad]
    return [*sizes, places[0], *of_lines, places[1], *of_places]


def _reciprocal(number):
    """Returns two ints with which ``n * multiplier >> shift`` is ``n // number`` for all n from 0 to 2**31 - 1."""
    shift = 31 + (number - 1).bit_length()
    return -(-(1 << shift) // number), shift
