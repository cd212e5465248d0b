"""Training on Chainer's Trainer: the parts between a config and a finished run.

The two extensions below fit into any Trainer whose optimizer is a :class:`mixprec.MixedPrecisionOptimizer`.
"""

from mixprec.training.gradient_histogram import GradientHistogram
from mixprec.training.loss_scale_log import LossScaleLog

__all__ = ["GradientHistogram", "LossScaleLog"]
