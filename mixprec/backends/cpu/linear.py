"""Linear layers on NumPy: matrix products by BLAS in float32."""

import numpy as np

from mixprec.backends.cpu.blocks import Rows, narrow, read, target, widen, write

_quiet = np.errstate(over="ignore", invalid="ignore")


class Linears:
    """The linear layers of :class:`~mixprec.backends.primitives.Primitives`."""

    @_quiet
    def linear(self, x, w, b=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear`."""
        y = widen(x) @ widen(w).T
        if b is not None:
            y += widen(b)
        return narrow(y, x.dtype)

    @_quiet
    def linear_dgrad(self, dy, w):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear_dgrad`."""
        return narrow(widen(dy) @ widen(w), dy.dtype)

    @_quiet
    def linear_wgrad(self, x, dy):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear_wgrad`."""
        return narrow(widen(dy).T @ widen(x), dy.dtype)

    @_quiet
    def bias_grad(self, dy, dtype):
        """See :meth:`~mixprec.backends.primitives.Primitives.bias_grad`."""
        rows = Rows(dy.shape)
        flat, scratch = dy.reshape(-1), rows.scratch()
        total = np.zeros(rows.channels)
        for part in rows.blocks():
            total += rows.sum(read(flat, part, scratch))
        return narrow(total.astype(np.float32), dtype)

    @_quiet
    def add_bias(self, x, b):
        """See :meth:`~mixprec.backends.primitives.Primitives.add_bias`."""
        rows = Rows(x.shape)
        y = np.empty(x.shape, x.dtype)
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        bias, scratch = rows.repeat(widen(b)), rows.scratch()
        for part in rows.blocks():
            block, out = read(flat_x, part, scratch), target(flat_y, part, scratch)
            np.add(block, bias[: block.size], out=out)
            write(flat_y, part, out)
        return y
