"""Batch normalization on CUDA: by own kernels, or on request by cuDNN's engines, which are compiled."""

import functools
import math

import numpy as np

from mixprec.backends.cuda import operations
from mixprec.backends.cuda.base import rows_of
from mixprec.backends.cuda.batch_norm_kernels import (
    ALWAYS,
    BY_OUTPUT,
    IN_BITS,
    INVSTD,
    RECOMPUTED,
    VARIANCE,
    BatchNormKernels,
    normalization,
)
from mixprec.backends.cudnn import settings
from mixprec.backends.geometry import BatchNorm, Normalized, Saved

# Memory for one element of a mask; a mask of the own kernels is uint8. With cuDNN 9.19 on an H100 it takes one bit.
CUDNN_MASK_DTYPE = np.dtype(np.bool_)

# Names of candidates by own kernels, and whether the second launch walks through memory from its end. Backwards is the
# first: it moves the same bytes, and begins with what the first launch has read last, which may still be in the
# second-level cache. The records of the H100 do not name what won. They are consistent with that order: the backward
# pass of 26 MB arrays took the time of 4.8 arrays, less than the 5 that own kernels move.
#
# Nor do they show that cuDNN wins without an addition, a second gradient or sums: the chosen engines took from 92 to
# 101 % of the time of cuDNN's first engine there, forward and backward.
_KERNELS = (("kernels, backwards", True), ("kernels", False))
_BITS = np.dtype(np.uint8)
_FLOAT = np.dtype(np.float32)


class BatchNorms(BatchNormKernels):
    """The batch normalizations of :class:`~mixprec.backends.primitives.Primitives`."""

    def batch_norm(self, x, gamma, beta, running, attributes, *, add=None, sums=None, ranks=None, factors=None):
        one = Normalized(x, gamma, beta, running, attributes, sums)
        if ranks is not None:  # cuDNN has no engine that would stop between its passes
            saved = self._statistics_of_ranks(x, attributes, running, ranks)
            return self._apply_batch(one._replace(sums=None), saved, add, factors=factors)
        if sums is not None:
            return self._apply_batch(one, self._saved_of(one), add, factors=factors)
        key = "batch_norm", x.shape, x.dtype, attributes, add is not None, factors is not None
        compute = self._choose(key, self._forward_candidates, (x, gamma, beta, None, add, factors))
        return compute(x, gamma, beta, running, add, factors)

    def batch_norm_part(self, x):
        rows, channels = rows_of(x)
        own = self._empty((3, channels), _FLOAT)
        own[0] = rows
        self._statistics(x, BatchNorm(eps=0.0), mean=own[1], invstd=own[2])
        return own

    def batch_norm_backward(
        self, dy, x, gamma, beta, saved, attributes, *, add=False, plus=None, ranks=None, factors=None
    ):
        arguments = dy, x, gamma, beta, saved, plus, factors
        if ranks is not None:
            return self._backward_by_kernels(attributes.relu, add, False, *arguments, ranks)
        mask = None if saved.mask is None else saved.mask.dtype
        options = attributes.relu, add, mask, plus is not None, factors is not None
        key = "batch_norm_backward", x.shape, x.dtype, *options
        return self._choose(key, self._backward_candidates, arguments)(*arguments)

    def batch_norm_inference(self, x, gamma, beta, mean, variance, attributes, *, add=None):
        how = normalization((gamma, beta, mean, variance), VARIANCE, attributes.eps)
        return self._apply(x, how, attributes.relu, add)

    def batch_norm_inference_backward(self, dy, x, gamma, beta, mean, variance, attributes, *, y=None):
        opening = ALWAYS if not attributes.relu else RECOMPUTED if y is None else BY_OUTPUT
        opened = y if opening == BY_OUTPUT else None
        dx, dgamma, dbeta, dadd = self._gradients(
            dy, x, (gamma, beta, mean, variance), VARIANCE, attributes.eps, opening, opened
        )
        return dx, dgamma, dbeta, dadd if opened is not None or y is None else dy

    # The candidates

    def _forward_candidates(self, shape, dtype, attributes, add, factors):
        yield from self._own(self._forward_by_kernels, attributes)
        # A single row has no unbiased variance, and cuDNN no factors. Its mask can be read by itself only.
        if not self._tries_cudnn() or factors or math.prod(shape[:-1]) == 1:
            return
        cudnn, masked = self._cudnn(), add and attributes.relu
        operation = operations.batch_norm(shape, dtype, attributes, add=add)
        backward = operations.batch_norm_backward(shape, dtype, mask=True)
        if cudnn.supports(operation) and (not masked or cudnn.supports(backward)):
            yield "cudnn", functools.partial(self._forward_by_cudnn, cudnn.plan(operation), masked)

    def _backward_candidates(self, shape, dtype, relu, add, mask, plus, factors):
        cudnn = self._cudnn()
        # cuDNN 9.19 builds plans in which ``plus`` is added to ``dy`` first, but no engine runs them on an H100:
        # CUDNN_STATUS_BAD_PARAM, nullptr == params.gmem_dy.
        operation = operations.batch_norm_backward(shape, dtype, recompute=relu and not add, mask=mask is not None)
        if mask not in (None, _BITS):  # whatever is tried now
            yield "cudnn", functools.partial(self._backward_by_cudnn, cudnn.plan(operation), relu, add)
            return
        yield from self._own(self._backward_by_kernels, relu, add)
        is_cudnns = mask is None and not factors and math.prod(shape[:-1]) > 1
        if self._tries_cudnn() and is_cudnns and cudnn.supports(operation):
            yield "cudnn", functools.partial(self._backward_by_cudnn, cudnn.plan(operation), relu, add)

    def _own(self, function, *arguments):
        """Returns the candidates by own kernels."""
        first, *others = ((name, functools.partial(function, *arguments, backwards)) for name, backwards in _KERNELS)
        return [first, *others] if self._tries_cudnn() else self._by_rule([first], others)

    def _tries_cudnn(self):
        """Whether cuDNN's engines are candidates, each of which takes about a second to compile."""
        return settings.current().compile_seconds > 0 or self._is_listed()

    def _forward_by_cudnn(self, plan, masked, x, gamma, beta, running, add, factors=None):
        y, mean, invstd = self._empty(x.shape, x.dtype), self._per_channel(gamma), self._per_channel(gamma)
        moved = running or (self._per_channel(gamma), self._per_channel(gamma))
        inputs = [x, gamma, beta, *moved] + [add] * (add is not None)
        outputs = [y, mean, invstd, *moved]
        mask = self._empty(x.shape, CUDNN_MASK_DTYPE) if masked else None
        outputs += [mask] * masked
        plan.run(*map(self._address, inputs), *map(self._address, outputs))
        return y, Saved(mean, invstd, mask)

    def _backward_by_cudnn(self, plan, relu, add, dy, x, gamma, beta, saved, plus, factors=None):
        if plus is not None:
            dy = self.add(dy, plus)
        dx, dgamma, dbeta = self._empty(x.shape, x.dtype), self._per_channel(gamma), self._per_channel(gamma)
        inputs, outputs = [dy, x, gamma, saved.mean, saved.invstd], [dx, dgamma, dbeta]
        dadd = dy if add else None
        if relu and add:
            dadd = self._empty(x.shape, x.dtype)
            inputs.append(saved.mask)
            outputs.append(dadd)
        elif relu:
            inputs.append(beta)
        plan.run(*map(self._address, inputs), *map(self._address, outputs))
        return dx, dgamma, dbeta, dadd

    def _forward_by_kernels(self, attributes, backwards, x, gamma, beta, running, add, factors=None):
        one = Normalized(x, gamma, beta, running, attributes)
        return self._apply_batch(one, self._saved_of(one), add, backwards, factors)

    def _backward_by_kernels(self, relu, add, backwards, dy, x, gamma, beta, saved, plus, factors=None, ranks=None):
        opening = ALWAYS if not relu else IN_BITS if add else RECOMPUTED
        parameters = gamma, beta, saved.mean, saved.invstd
        of_ranks = None if ranks is None else (ranks, saved.count)
        options = {"plus": plus, "backwards": backwards, "of_ranks": of_ranks, "factors": factors}
        dx, dgamma, dbeta, kept = self._gradients(dy, x, parameters, INVSTD, 0.0, opening, saved.mask, **options)
        if not add:
            return dx, dgamma, dbeta, None
        return dx, dgamma, dbeta, dy if kept is None else kept
