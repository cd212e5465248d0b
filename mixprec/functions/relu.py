"""ReLU and addition where no other function can be fused with them."""

from mixprec.functions import checks
from mixprec.functions.node import Node, dense


def relu(x):
    """Computes ``max(x, 0)``, as :func:`chainer.functions.relu`, which does not support bfloat16.

    Convolutions and batch normalizations take ``relu=True`` instead, at no cost.

    Args:
        x: any shape, in a storage dtype.

    Returns:
        Variable like ``x``.

    Raises:
        TypeError: x is not in a storage dtype.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> functions.relu(np.array([-1, 0, 2], np.float16)).array.tolist()
        [0.0, 0.0, 2.0]
    """
    return ReLU().apply((x,))[0]


class ReLU(Node):
    """See :func:`relu`."""

    name = "relu"
    is_repeatable = True
    image_inputs = (0,)

    def compute(self, primitives, x):
        self.retain_outputs((0,))
        return (primitives.relu(x),)

    def gradients(self, primitives, indexes, dy):
        return (primitives.relu_backward(dy, dense(self.retained_output())),)


class Addition(Node):
    """The sum of two arrays in one storage dtype, in float32 and rounded once."""

    name = "add"
    is_repeatable = True
    image_inputs = (0, 1)

    def check(self, x, other):
        checks.dtype(self.name, "x", x)
        checks.like(self.name, "other", other, "x", x)

    def compute(self, primitives, x, other):
        return (primitives.add(x, other),)

    def gradients(self, primitives, indexes, dy):
        return dy, dy
