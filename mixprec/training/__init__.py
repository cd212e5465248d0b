"""Training on Chainer's Trainer: the parts between a config and a finished run.

The extensions and the updater below fit into any Trainer whose optimizer is a
:class:`mixprec.MixedPrecisionOptimizer`.
"""

from mixprec.training.gradient_histogram import GradientHistogram
from mixprec.training.log_report import LogReport
from mixprec.training.loss_scale_log import LossScaleLog
from mixprec.training.updater import CapturedUpdater

__all__ = ["CapturedUpdater", "GradientHistogram", "LogReport", "LossScaleLog"]
