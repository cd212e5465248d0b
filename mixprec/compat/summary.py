"""``chainer.reporter.Summary`` on float16 values."""

from mixprec.compat import hooks
from mixprec.compat.half import widened


@hooks.after_import("chainer.reporter")
def accumulate_in_float32(reporter):
    """Makes ``Summary`` (behind LogReport, Evaluator, DictSummary) accumulate float16 values in float32.

    Without it the sums are float16 (on GPUs in every NumPy, on CPUs under NEP 50): 10,000 losses of 2.3
    average to 0.82, and a loss of 256 has an infinite square, hence a standard deviation of nan.
    """
    original = reporter.Summary.add

    def add(self, value, weight=1):
        original(self, widened(value), widened(weight))

    add.__doc__ = original.__doc__
    reporter.Summary.add = add
