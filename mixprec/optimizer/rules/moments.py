"""Running averages of a gradient and of its square, as Adam and LAMB begin."""

import numpy as np

MOMENTS = """
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
"""


def advance_moments(g, m, v, one_minus_beta1, one_minus_beta2, a):
    """Advances ``m`` and ``v`` in place by the gradient ``g``; ``a`` is scratch."""
    np.subtract(g, m, out=a)
    np.multiply(a, one_minus_beta1, out=a)
    np.add(m, a, out=m)
    np.multiply(g, g, out=a)
    np.subtract(a, v, out=a)
    np.multiply(a, one_minus_beta2, out=a)
    np.add(v, a, out=v)
