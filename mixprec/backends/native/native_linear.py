"""Linear layers by the native library, as convolutions of pixels; see :mod:`mixprec.backends.native`."""

from mixprec.backends.geometry import Convolution
from mixprec.backends.native.native_convolution import computes, dgrad, fprop, wgrad

_POINTWISE = Convolution()


class NativeLinears:
    """Some of :class:`~mixprec.backends.primitives.Primitives`, by the library."""

    def linear(self, x, w, b=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear`."""
        if not computes(x, w):
            return super().linear(x, w, b)
        return fprop(_pixels(x), w[:, None, None], _POINTWISE, b)[0, 0]

    def linear_dgrad(self, dy, w):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear_dgrad`."""
        if not computes(dy, w):
            return super().linear_dgrad(dy, w)
        return dgrad(_pixels(dy), w[:, None, None], _POINTWISE, (1, 1, len(dy), w.shape[1]))[0, 0]

    def linear_wgrad(self, x, dy):
        """See :meth:`~mixprec.backends.primitives.Primitives.linear_wgrad`."""
        if not computes(x, dy):
            return super().linear_wgrad(x, dy)
        return wgrad(_pixels(x), _pixels(dy), _POINTWISE, (dy.shape[1], 1, 1, x.shape[1]))[:, 0, 0]


def _pixels(rows):
    """Returns (B, C) as one image (1, 1, B, C)."""
    return rows[None, None]
