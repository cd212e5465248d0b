"""The link for fully connected layers."""

import math

import chainer.links as L

from mixprec import functions
from mixprec.functions import checks
from mixprec.precision.storage import StoredInFloat32, rounded


class Linear(StoredInFloat32, L.Linear):
    """Fully connected layer, otherwise :class:`chainer.links.Linear`.

    Images (N, H, W, C) are flattened in the order (C, H, W), so that weights match a Chainer model.

    Args:
        in_size: number of elements of a sample; ``None`` to take it from the first input.
        out_size: number of outputs; may also be given as the only size, as the first argument.
        nobias: whether there is no bias.
        initialW: initializer of W, an array (out_size, in_size), or a number.
        initial_bias: initializer of b, an array (out_size,), or a number.
        dtype: as in :class:`~mixprec.links.Convolution2D`.

    Raises:
        TypeError: ``nobias`` is not a bool, or an initializer argument is not an initializer.
        ValueError: another argument is out of its range.

    Example:
        >>> import numpy as np
        >>> from mixprec import links
        >>> fc = links.Linear(None, 10, dtype="float16")
        >>> y = fc(np.ones((8, 7, 7, 16), np.float16))
        >>> y.shape, fc.W.shape, fc.W.dtype.name  # 7 * 7 * 16 = 784
        ((8, 10), (10, 784), 'float16')
    """

    def __init__(self, in_size, out_size=None, nobias=False, initialW=None, initial_bias=None, *, dtype=None):
        if out_size is None:  # Chainer takes the first one for it
            in_size, out_size = None, in_size
        in_size = None if in_size is None else checks.whole("Linear", "in_size", in_size, 1)
        out_size = checks.whole("Linear", "out_size", out_size, 1)
        checks.flag("Linear", "nobias", nobias)
        weights, bias = rounded("Linear", initialW, initial_bias, dtype)
        super().__init__(in_size, out_size, nobias, weights, bias)

    @property
    def printable_specs(self):
        """Yields what ``str`` shows."""
        yield from super().printable_specs
        yield "dtype", self.W.dtype.name

    def forward(self, x, n_batch_axes=1):
        """Multiplies and adds, see :func:`mixprec.functions.linear`.

        Args:
            x: (B, C), or (N, H, W, C), or any other shape, in the dtype of W.
            n_batch_axes: number of leading axes of ``x`` that are batch axes.

        Returns:
            Variable (B, out_size), or with all batch axes (..., out_size).
        """
        if self.W.array is None:
            checks.variable("Linear", "x", x)
            checks.whole("Linear", "n_batch_axes", n_batch_axes, 1)
            self._initialize_params(math.prod(x.shape[n_batch_axes:]))
        return functions.linear(x, self.W, self.b, n_batch_axes)
