"""Casts, ReLU, dropout, additions, biases and changes of layout by the native library.

See :mod:`mixprec.backends.cpu.native_primitives`.
"""

import numpy as np

from mixprec.native.native_library import are_stored_alike, is_stored, library, raw


class NativeElementwise:
    """The elementwise :class:`~mixprec.backends.primitives.Primitives`, by the library."""

    def cast(self, x, dtype):
        """See :meth:`~mixprec.backends.primitives.Primitives.cast`."""
        if x.dtype == dtype or not is_stored(x.dtype) or not is_stored(np.dtype(dtype)):
            return super().cast(x, dtype)
        y = np.empty(x.shape, dtype)
        library().convert(raw(x), raw(y))
        return y

    def add(self, a, b):
        """See :meth:`~mixprec.backends.primitives.Primitives.add`."""
        if not are_stored_alike(a, b):
            return super().add(a, b)
        y = np.empty(a.shape, a.dtype)
        library().add(raw(a), raw(b), raw(y))
        return y

    def relu(self, x):
        """See :meth:`~mixprec.backends.primitives.Primitives.relu`."""
        if not are_stored_alike(x):
            return super().relu(x)
        y = np.empty(x.shape, x.dtype)
        library().relu(raw(x), raw(y))
        return y

    def relu_backward(self, dy, y):
        """See :meth:`~mixprec.backends.primitives.Primitives.relu_backward`."""
        if not are_stored_alike(dy, y):
            return super().relu_backward(dy, y)
        dx = np.empty(dy.shape, dy.dtype)
        library().relu_backward(raw(dy), raw(y), raw(dx))
        return dx

    def dropout(self, x, ratio, key):
        """See :meth:`~mixprec.backends.primitives.Primitives.dropout`."""
        if not are_stored_alike(x):
            return super().dropout(x, ratio, key)
        y = np.empty(x.shape, x.dtype)
        library().dropout(raw(x), ratio, key, raw(y))
        return y

    def add_bias(self, x, b):
        """See :meth:`~mixprec.backends.primitives.Primitives.add_bias`."""
        if not are_stored_alike(x):
            return super().add_bias(x, b)
        y = np.empty(x.shape, x.dtype)
        bias = np.ascontiguousarray(b, np.float32)
        library().affine(raw(x), x.shape[-1], None, bias, None, None, None, 0, None, raw(y))
        return y

    def bias_grad(self, dy, dtype):
        """See :meth:`~mixprec.backends.primitives.Primitives.bias_grad`."""
        if not are_stored_alike(dy):
            return super().bias_grad(dy, dtype)
        _, sums = both = np.empty((2, dy.shape[-1]))
        library().gradient_sums(raw(dy), dy.shape[-1], *(None,) * 9, *both)
        with np.errstate(over="ignore"):
            return self.cast(sums.astype(np.float32), dtype)

    def to_nhwc(self, x, dtype, channels=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.to_nhwc`."""
        if not is_stored(x.dtype) or not is_stored(np.dtype(dtype)):
            return super().to_nhwc(x, dtype, channels)
        images, own, height, width = x.shape
        y = np.empty((images, height, width, max(own, channels or 0)), dtype)
        library().transpose(raw(x), raw(y), (images, own, height * width), (height * width, y.shape[3]))
        return y

    def to_nchw(self, x, dtype, channels=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.to_nchw`."""
        if not is_stored(x.dtype) or not is_stored(np.dtype(dtype)):
            return super().to_nchw(x, dtype, channels)
        images, height, width, own = x.shape
        y = np.empty((images, own if channels is None else min(channels, own), height, width), dtype)
        library().transpose(raw(x), raw(y), (images, height * width, own), (y.shape[1], height * width))
        return y
