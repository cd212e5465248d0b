"""The pieces of batch normalizations by the native library; :mod:`mixprec.backends.cpu.batch_norm` calls them."""

from typing import Any, NamedTuple

import numpy as np

from mixprec.native.native_library import are_stored_alike, library, raw


class _Again(NamedTuple):
    """A gradient that is computed again where it is read: ``dy + plus`` behind the ReLU of ``affine``."""

    dy: Any
    plus: Any = None
    affine: Any = (None, None)


class NativeBatchNorms:
    """In place of the pieces of :class:`~mixprec.backends.cpu.batch_norm.BatchNorms`."""

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
        library().affine(raw(x), x.shape[-1], *affine, raw(add), int(relu), mask, raw(y))
        return y, mask

    def _reduce(self, dy, plus, x, mean, affine, relu, add, mask, out=None):
        center = _float32(mean)
        if not are_stored_alike(dy, plus, x):
            return super()._reduce(dy, plus, x, mean, affine, relu, add, mask, out)
        is_new = relu or plus is not None
        g = (np.empty(dy.shape, dy.dtype) if out is None else out) if add and is_new else None
        again = _Again(dy, plus, affine) if relu and not add else _Again(dy, plus)
        products, sums = np.empty((2, x.shape[-1]))
        mask = raw(mask) if relu and add else None
        library().gradient_sums(*_raw(again), mask, raw(x), center, raw(g), products, sums)
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
    """Returns what the library takes of a gradient, but the mask of an addition."""
    return raw(again.dy), again.dy.shape[-1], raw(again.plus), *again.affine


def _float32(vector):
    return np.ascontiguousarray(vector, np.float32)
