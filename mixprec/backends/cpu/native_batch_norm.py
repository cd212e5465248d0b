"""The pieces of batch normalizations by the native library; :mod:`mixprec.backends.cpu.batch_norm` calls them."""

from typing import Any, NamedTuple

import numpy as np

from mixprec.backends.cpu.batch_norm import quiet, slopes
from mixprec.native.native_library import are_stored_alike, library, raw


class _Again(NamedTuple):
    """A gradient that is recomputed where it is read: ``dy + plus`` after the ReLU of ``affine``."""

    dy: Any
    plus: Any = None
    affine: Any = (None, None)


class NativeBatchNorms:
    """Replaces the pieces of :class:`~mixprec.backends.cpu.batch_norm.BatchNorms`."""

    def _moments(self, x):
        if not are_stored_alike(x):
            return super()._moments(x)
        mean, squares = np.empty((2, x.shape[-1]))
        library().moments(raw(x), x.shape[-1], mean, squares)
        return mean, squares / (x.size // x.shape[-1])

    def apply_affine(self, x, affine, relu, add=None, keep_mask=False, out=None):
        """See :meth:`~mixprec.backends.cpu.batch_norm.BatchNorms.apply_affine`."""
        if not are_stored_alike(x, add):
            return super().apply_affine(x, affine, relu, add, keep_mask, out)
        y, mask = (np.empty(x.shape, x.dtype), None) if out is None else out
        if out is None and relu and add is not None and keep_mask:
            mask = np.empty(x.shape, bool)
        library().affine(raw(x), x.shape[-1], *affine, raw(add), None, None, int(relu), mask, raw(y))
        return y, mask

    @quiet
    def dual_batch_norm(self, one, other):
        """See :meth:`~mixprec.backends.primitives.Primitives.dual_batch_norm`."""
        if not are_stored_alike(one.x, other.x):
            return super().dual_batch_norm(one, other)
        added, of_other = self._statistics(*other)
        affine, of_one = self._statistics(*one)
        x, relu = one.x, one.attributes.relu
        y, mask = np.empty(x.shape, x.dtype), np.empty(x.shape, bool) if relu else None
        library().affine(raw(x), x.shape[-1], *affine, raw(other.x), *added, int(relu), mask, raw(y))
        return y, (of_one._replace(mask=mask), of_other)

    @quiet
    def dual_batch_norm_backward(self, dy, one, other, saved, *, plus=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.dual_batch_norm_backward`."""
        is_new = one.attributes.relu or plus is not None
        if not is_new or not are_stored_alike(dy, plus, one.x, other.x):
            return super().dual_batch_norm_backward(dy, one, other, saved, plus=plus)
        g, channels = np.empty(dy.shape, dy.dtype), dy.shape[-1]
        products, sums = np.empty((2, channels)), np.empty(channels)
        inputs = raw(one.x), saved[0].mean, raw(other.x), saved[1].mean
        library().gradient_sums(*_raw(_Again(dy, plus)), raw(saved[0].mask), *inputs, raw(g), products, sums)

        def gradients(one, saved, products):
            scale, dgamma = one.gamma * saved.invstd, products * saved.invstd
            of_x = slopes(scale, saved, dgamma, sums, dy.size // channels)
            dx = self._combine(g, scale, one.x, saved.mean, *of_x, reuse=False)
            return dx, dgamma.astype(np.float32), sums.astype(np.float32)

        return gradients(one, saved[0], products[0]), gradients(other, saved[1], products[1]), g

    def _reduce(self, dy, plus, x, mean, affine, relu, add, mask, out=None):
        center = _float32(mean)
        if not are_stored_alike(dy, plus, x):
            return super()._reduce(dy, plus, x, mean, affine, relu, add, mask, out)
        is_new = relu or plus is not None
        g = (np.empty(dy.shape, dy.dtype) if out is None else out) if add and is_new else None
        again = _Again(dy, plus, affine) if relu and not add else _Again(dy, plus)
        products, sums = np.empty((2, x.shape[-1]))
        mask = raw(mask) if relu and add else None
        library().gradient_sums(*_raw(again), mask, raw(x), center, None, None, raw(g), products, sums)
        return (dy if not is_new else again if g is None else g), products, sums

    def _combine(self, g, scale, x, mean, slope, offset, reuse, out=None):
        vectors = [*map(_float32, (scale, mean, slope, offset))]
        again = g if isinstance(g, _Again) else _Again(g)
        if not are_stored_alike(again.dy, x):
            return super()._combine(g, scale, x, mean, slope, offset, reuse, out)
        dx = np.empty(x.shape, x.dtype) if out is None else out
        library().combine(*_raw(again), None, raw(x), *vectors, raw(dx))
        return dx

    def _scaled(self, g, x, scale):
        again = g if isinstance(g, _Again) else _Again(g)
        if not are_stored_alike(again.dy, x):
            return super()._scaled(g, x, scale)
        dx = np.empty(x.shape, x.dtype)
        library().combine(*_raw(again), None, raw(x), scale, None, None, None, raw(dx))
        return dx


def _raw(again):
    """Returns a gradient as arguments of the library, without the mask of an addition."""
    return raw(again.dy), again.dy.shape[-1], raw(again.plus), *again.affine


def _float32(vector):
    return np.ascontiguousarray(vector, np.float32)
