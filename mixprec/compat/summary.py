"""``chainer.reporter.Summary`` on float16 values."""

from mixprec.compat.half import widened
from mixprec.compat.hooks import around


@around("chainer.reporter:Summary.add")
def accumulate_in_float32(original, self, value, weight=1):
    """Without it LogReport and Evaluator sum float16 losses in float16: 10,000 of 2.3 have the mean 0.82.

    A loss of 256 has an infinite square, and so a standard deviation of nan. On GPUs that is so in every NumPy, on CPUs
    under NEP 50.
    """
    original(self, widened(value), widened(weight))
