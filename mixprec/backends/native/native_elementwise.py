"""Casts and additions by the native library; see :mod:`mixprec.backends.native`."""

import numpy as np

from mixprec.native.library import library, raw


class NativeElementwise:
    """Some of :class:`~mixprec.backends.primitives.Primitives`, by the library."""

    def cast(self, x, dtype):
        """See :meth:`~mixprec.backends.primitives.Primitives.cast`."""
        if x.dtype == dtype or x.dtype == np.float64:
            return super().cast(x, dtype)
        y = np.empty(x.shape, dtype)
        library().convert(raw(x), raw(y))
        return y

    def add(self, a, b):
        """See :meth:`~mixprec.backends.primitives.Primitives.add`."""
        y = np.empty(a.shape, a.dtype)
        library().add(raw(a), raw(b), raw(y))
        return y
