"""Local response normalization on NumPy, in one pass over blocks of rows."""

import numpy as np

from mixprec.backends.cpu.blocks import Rows, read, target, write

# Overflows give inf or NaN without a warning, as on a device: the loss scale watches for them.
_quiet = np.errstate(all="ignore")


class LocalResponseNorms:
    """The local response normalization of :class:`~mixprec.backends.primitives.Primitives`."""

    @_quiet
    def local_response_norm(self, x, attributes):
        """See :meth:`~mixprec.backends.primitives.Primitives.local_response_norm`."""
        rows = Rows(x.shape)
        norm = _Norm(rows, attributes)
        return rows.mapped(x, lambda block, out: np.multiply(block, norm(block)[1], out=out))

    @_quiet
    def local_response_norm_backward(self, dy, x, attributes):
        """See :meth:`~mixprec.backends.primitives.Primitives.local_response_norm_backward`."""
        rows = Rows(x.shape)
        norm, windows = _Norm(rows, attributes), _Windows(rows, attributes)
        slope = np.float32(-2 * attributes.alpha * attributes.beta)
        dx = np.empty(x.shape, x.dtype)
        flat_dy, flat_x, flat_dx = dy.reshape(-1), x.reshape(-1), dx.reshape(-1)
        x_scratch, dy_scratch, terms = rows.scratch(), rows.scratch(), rows.scratch()
        for part in rows.blocks():
            block, gradient = read(flat_x, part, x_scratch), read(flat_dy, part, dy_scratch)
            out, term = target(flat_dx, part, dy_scratch), terms[: block.size]
            base, factor = norm(block)
            # The gradient is multiplied last: no intermediate result is larger than the final one.
            np.multiply(block, factor, out=term)
            np.divide(term, base, out=term)
            np.multiply(*map(rows.matrix, (term, gradient)), out=windows.elements(block))
            np.multiply(windows.sums(block), rows.matrix(block), out=rows.matrix(term))
            np.multiply(term, slope, out=term)
            np.multiply(gradient, factor, out=out)
            np.add(out, term, out=out)
            write(flat_dx, part, out)
        return dx


class _Norm:
    """Computes ``k + alpha * s`` and its power ``-beta`` for flat float32 blocks of rows.

    Args:
        rows: :class:`~mixprec.backends.cpu.blocks.Rows`.
        attributes: :class:`~mixprec.backends.geometry.LocalResponseNorm`.
    """

    def __init__(self, rows, attributes):
        self._rows = rows
        self._attributes = attributes
        self._windows = _Windows(rows, attributes)
        self._bases, self._factors = rows.scratch(), rows.scratch()

    def __call__(self, block):
        """Returns ``(base, factor)``, flat; the next call overwrites them."""
        base, factor = self._bases[: block.size], self._factors[: block.size]
        np.square(self._rows.matrix(block), out=self._windows.elements(block))
        np.multiply(self._windows.sums(block), np.float32(self._attributes.alpha), out=self._rows.matrix(base))
        np.add(base, np.float32(self._attributes.k), out=base)
        if self._attributes.beta == 0.75:  # in practice always; NumPy has vectors for powers on few processors only
            np.sqrt(base, out=factor)
            np.multiply(factor, np.sqrt(factor), out=factor)
            np.divide(np.float32(1), factor, out=factor)
        else:
            np.power(base, np.float32(-self._attributes.beta), out=factor)
        return base, factor


class _Windows:
    """Sums over the windows of a block of rows.

    Rows are concatenated with zeros between them, as many as half a window: so the sums of all rows are a few additions
    of one long array, twice as fast as row by row.

    Args:
        rows: :class:`~mixprec.backends.cpu.blocks.Rows`.
        attributes: :class:`~mixprec.backends.geometry.LocalResponseNorm`.
    """

    def __init__(self, rows, attributes):
        self._channels = rows.channels
        self._reach = attributes.reach(rows.channels)
        self._step = self._channels + self._reach
        size = rows.scratch().size // max(self._channels, 1) * self._step
        self._padded = np.zeros(self._reach + size, np.float32)
        self._sums = np.empty(size, np.float32)

    def elements(self, block):
        """Returns a view (rows, C) for the elements of a flat block."""
        return self._matrix(self._padded[self._reach :], block)

    def sums(self, block):
        """Returns a view (rows, C) of the sums of the elements around each; :meth:`elements` stays as it is."""
        reach = self._reach
        size = block.size // self._channels * self._step - reach
        sums = self._sums[:size]
        np.copyto(sums, self._padded[reach : reach + size])
        for start in (*reversed(range(reach)), *range(reach + 1, 2 * reach + 1)):
            np.add(sums, self._padded[start : start + size], out=sums)
        return self._matrix(self._sums, block)

    def _matrix(self, padded, block):
        count = block.size // self._channels
        return padded[: count * self._step].reshape(count, self._step)[:, : self._channels]
