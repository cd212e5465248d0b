"""Rows of tables on NumPy, and their gradients."""

import numpy as np

from mixprec.backends.cpu.blocks import narrow, widen

_quiet = np.errstate(over="ignore", invalid="ignore")


class Embeddings:
    """The primitives of :class:`~mixprec.backends.primitives.Primitives` that choose and join rows."""

    def concat_rows(self, arrays):
        """See :meth:`~mixprec.backends.primitives.Primitives.concat_rows`."""
        return np.concatenate(arrays)

    def embed(self, w, t, ignore_label=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.embed`."""
        if ignore_label is None:
            return w[t]
        ignored = t == ignore_label
        y = w[np.where(ignored, 0, t)]
        y[ignored] = 0
        return y

    @_quiet
    def embed_backward(self, dy, t, rows, ignore_label=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.embed_backward`."""
        if ignore_label is not None:
            counted = t != ignore_label
            dy, t = dy[counted], t[counted]
        dw = np.zeros((rows, dy.shape[1]), dy.dtype)
        if t.size:
            t = np.where(t < 0, t + rows, t)
            order = np.argsort(t, kind="stable")
            labels, starts = np.unique(t[order], return_index=True)
            dw[labels] = narrow(np.add.reduceat(widen(dy[order]), starts, axis=0), dy.dtype)
        return dw
