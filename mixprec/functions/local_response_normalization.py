"""Local response normalization across channels (Krizhevsky et al. 2012)."""

from mixprec.backends.geometry import LocalResponseNorm
from mixprec.functions import checks
from mixprec.functions.node import Node


def local_response_normalization(x, n=5, k=2, alpha=1e-4, beta=0.75):
    """Normalizes by neighbouring channels, as :func:`chainer.functions.local_response_normalization` does, in NHWC.

    ``y_i = x_i / (k + alpha * (sum of x_j**2 for j from i - n // 2 to i + n // 2)) ** beta``, the sum cut at the first
    and the last channel: Krizhevsky et al. 2012, "ImageNet classification with deep convolutional neural networks",
    section 3.3. An even n means n + 1 channels, as in Chainer's manual and on its CPU; on a GPU Chainer takes n.

    Args:
        x: (..., C) with two axes or more, in a storage dtype.
        n: channels of the window, 1 or more.
        k: constant added to the sum.
        alpha: factor on the sum; it is not divided by ``n``.
        beta: the exponent.

    Returns:
        Variable like ``x``. It is not finite where ``k + alpha * sum`` is not above 0.

    Raises:
        TypeError: x is not in a storage dtype.
        ValueError: x has one axis, or another argument is out of range.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.ones((1, 4), np.float32)  # a window of 3 channels has two of them at an edge
        >>> functions.local_response_normalization(x, n=3, k=1, alpha=0.5, beta=1).array.tolist()
        [[0.5, 0.4000000059604645, 0.4000000059604645, 0.5]]
    """
    name = LocalResponseNormalization.name
    attributes = LocalResponseNorm(
        checks.whole(name, "n", n, 1),
        checks.number(name, "k", k),
        checks.number(name, "alpha", alpha),
        checks.number(name, "beta", beta),
    )
    return LocalResponseNormalization(attributes).apply((x,))[0]


class LocalResponseNormalization(Node):
    """See :func:`local_response_normalization`.

    Args:
        attributes: :class:`~mixprec.backends.geometry.LocalResponseNorm`.
    """

    name = "local_response_normalization"
    is_repeatable = True
    image_inputs = (0,)

    def __init__(self, attributes):
        self._attributes = attributes

    def check(self, x):
        super().check(x)
        if x.ndim < 2:
            raise ValueError(f"{self.name}: x must be (..., C) with two axes or more; found shape {x.shape}")

    def compute(self, primitives, x):
        self.retain_inputs((0,))
        return (primitives.local_response_norm(x, self._attributes),)

    def gradients(self, primitives, indexes, dy):
        (x,) = self.retained()
        return (primitives.local_response_norm_backward(dy, x, self._attributes),)
