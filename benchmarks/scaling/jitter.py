"""How much longer a step takes when all wait for the slowest, as every step of synchronous training does."""

import functools
import math


@functools.cache
def expected_maximum(number):
    """Returns the expected maximum of so many independent standard normal numbers.

    It is the integral of ``1 - Phi(x)^n - Phi(-x)^n`` over ``x > 0``, with Phi the distribution function. The bound
    ``sqrt(2 ln n)`` is larger, by 44 % for 8 numbers and by 15 % for 1024.

    Args:
        number: at least 1.
    """
    step, end = 1e-3, 10.0  # 1 - Phi(10) is 8e-24

    def integrand(x):
        below = 0.5 * math.erfc(-x / math.sqrt(2))
        above = 0.5 * math.erfc(x / math.sqrt(2))
        return 1 - below**number - above**number

    inside = sum(integrand(place * step) for place in range(1, round(end / step)))
    return step * (integrand(0.0) / 2 + inside)
