"""Pooling of images (N, H, W, C)."""

import numpy as np

from mixprec.backends.geometry import Pooling
from mixprec.functions import checks
from mixprec.functions.node import Node, as_nchw, dense

LARGEST_WINDOW = 255  # elements: the index of the maximum is one byte


def max_pooling_2d(x, ksize, stride=None, pad=0, cover_all=True):
    """Returns the maximum of each window, as :func:`chainer.functions.max_pooling_2d` does, in NHWC.

    Args:
        x: (N, H, W, C) in a storage dtype.
        ksize: rows and columns of a window, at most 255 elements; a number or a pair.
        stride: steps between windows; a number or a pair; ``None`` for ``ksize``.
        pad: rows and columns of padding on every side, which are never the maximum; a number or a pair.
        cover_all: whether windows may reach beyond the padded input, so that they cover all of it.

    Returns:
        Variable (N, OH, OW, C).

    Raises:
        TypeError: x is not in a storage dtype.
        ValueError: a shape does not fit.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.arange(16, dtype=np.float16).reshape(1, 4, 4, 1)
        >>> functions.max_pooling_2d(x, 2).array[0, :, :, 0].tolist()
        [[5.0, 7.0], [13.0, 15.0]]
        >>> x = np.zeros((8, 112, 112, 64), np.float16)  # as the first pooling of a ResNet
        >>> functions.max_pooling_2d(x, 3, stride=2, pad=1, cover_all=False).shape
        (8, 56, 56, 64)
    """
    return MaxPooling2D(_pooling(MaxPooling2D.name, ksize, stride, pad, cover_all)).apply((x,))[0]


def average_pooling_2d(x, ksize, stride=None, pad=0):
    """Returns the mean of each window, padding included, as :func:`chainer.functions.average_pooling_2d`, in NHWC.

    Args:
        x: (N, H, W, C) in a storage dtype.
        ksize: rows and columns of a window; a number or a pair.
        stride: steps between windows; a number or a pair; ``None`` for ``ksize``.
        pad: rows and columns of zeros on every side; a number or a pair.

    Returns:
        Variable (N, OH, OW, C).

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.arange(16, dtype=np.float16).reshape(1, 4, 4, 1)
        >>> functions.average_pooling_2d(x, 2).array[0, :, :, 0].tolist()
        [[2.5, 4.5], [10.5, 12.5]]
    """
    return AveragePooling2D(_pooling(AveragePooling2D.name, ksize, stride, pad, cover_all=False)).apply((x,))[0]


def global_average_pooling_2d(x):
    """Returns the mean (N, C) of each channel of each image of ``x`` (N, H, W, C).

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.arange(8, dtype=np.float16).reshape(1, 2, 2, 2)
        >>> functions.global_average_pooling_2d(x).array.tolist()
        [[3.0, 4.0]]
    """
    return GlobalAveragePooling2D().apply((x,))[0]


def _pooling(function, ksize, stride, pad, cover_all):
    window = checks.pair(function, "ksize", ksize, 1)
    step = window if stride is None else checks.pair(function, "stride", stride, 1)
    return Pooling(window, step, checks.pair(function, "pad", pad, 0), checks.flag(function, "cover_all", cover_all))


class _Pooling(Node):
    """A node with windows.

    Args:
        pooling: :class:`~mixprec.backends.geometry.Pooling`.
    """

    image_inputs = (0,)

    def __init__(self, pooling):
        self._pooling = self.options = pooling

    def check(self, x):
        checks.images(self.name, "x", x)
        if min(self._pooling.out_size(x.shape[1:3])) <= 0:
            raise ValueError(
                f"{self.name}: x {x.shape} with pad {self._pooling.pad} is smaller than the window "
                f"{self._pooling.window}; x must be (N, H, W, C)"
            )


class MaxPooling2D(_Pooling):
    """See :func:`max_pooling_2d`."""

    name = "max_pooling_2d"
    is_repeatable = True

    def check(self, x):
        super().check(x)
        rows, columns = self._pooling.window
        if rows * columns > LARGEST_WINDOW:
            raise ValueError(
                f"{self.name}: a window must have at most {LARGEST_WINDOW} elements; found {self._pooling.window}"
            )

    def compute(self, primitives, x):
        self._x_shape = x.shape
        y, self._where = primitives.max_pool(x, self._pooling)
        return (y,)

    @classmethod
    def with_places(cls, pooling, where, x_shape):
        """Returns a node that goes backward only, for images (N, H, W, C) = ``x_shape`` as in Chainer.

        Args:
            pooling: :class:`~mixprec.backends.geometry.Pooling`.
            where: from :meth:`~mixprec.backends.primitives.Primitives.max_pool`.
            x_shape: shape of the input.
        """
        node = cls(pooling)
        node.channels_first, node._where, node._x_shape = True, where, x_shape
        return node

    def gradients(self, primitives, indexes, dy):
        return (primitives.max_pool_backward(dy, self._where, self._pooling, self._x_shape),)

    def indexes(self):
        """Returns the indices of the maxima in their windows, as Chainer's ``max_pooling_2d(return_indices=True)``.

        Returns:
            integers in the shape and the order of the result; Chainer's are int64 on NumPy and int32 on a GPU.
        """
        indexes = self._where.astype(np.int64 if isinstance(self._where, np.ndarray) else np.int32)
        return as_nchw(indexes) if self.channels_first else indexes


class AveragePooling2D(_Pooling):
    """See :func:`average_pooling_2d`."""

    name = "average_pooling_2d"
    is_repeatable = True

    def compute(self, primitives, x):
        self._x_shape = x.shape
        return (primitives.average_pool(x, self._pooling),)

    def gradients(self, primitives, indexes, dy):
        return (primitives.average_pool_backward(dy, self._pooling, self._x_shape),)


class GlobalAveragePooling2D(Node):
    """See :func:`global_average_pooling_2d`.

    Args:
        keepdims: whether the result is (N, 1, 1, C).
    """

    name = "global_average_pooling_2d"
    is_repeatable = True
    image_inputs = (0,)

    def __init__(self, keepdims=False):
        self._keepdims = keepdims

    def check(self, x):
        checks.images(self.name, "x", x)

    def compute(self, primitives, x):
        self._x_shape = x.shape
        y = primitives.global_average_pool(x)
        return (y[:, None, None] if self._keepdims else y,)

    def gradients(self, primitives, indexes, dy):
        dy = dy[:, 0, 0] if self._keepdims else dy
        return (primitives.global_average_pool_backward(dense(dy), self._x_shape),)
