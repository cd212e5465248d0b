"""Casts and changes of layout on NumPy."""

import numpy as np

from mixprec.backends.cpu.storage import narrow, widen


class Layouts:
    """The casts of :class:`~mixprec.backends.primitives.Primitives`."""

    def cast(self, x, dtype):
        """See :meth:`~mixprec.backends.primitives.Primitives.cast`."""
        return x if x.dtype == dtype else narrow(widen(x), dtype)

    def to_nhwc(self, x, dtype, channels=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.to_nhwc`."""
        images, own, height, width = x.shape
        y = np.empty((images, height, width, max(own, channels or 0)), dtype)
        y[..., :own] = self.cast(x, dtype).transpose(0, 2, 3, 1)
        y[..., own:] = 0
        return y

    def to_nchw(self, x, dtype, channels=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.to_nchw`."""
        kept = x.shape[3] if channels is None else min(channels, x.shape[3])
        return self.cast(x, dtype)[..., :kept].transpose(0, 3, 1, 2).copy()
