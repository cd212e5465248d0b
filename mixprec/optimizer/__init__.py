"""The optimizer wrapper: FP32 master weights, loss scaling, skipped steps."""

from mixprec.optimizer.grad_scales import UnscaledBackward
from mixprec.optimizer.wrapper import MixedPrecisionOptimizer

__all__ = ["MixedPrecisionOptimizer", "UnscaledBackward"]
