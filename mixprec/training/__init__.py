"""Updaters and extensions for any Trainer of Chainer whose optimizer is a :class:`mixprec.MixedPrecisionOptimizer`.

Nothing here reads a config; the training command combines the parts in :mod:`mixprec.app.parts.trainer`. In the order
in which to read: ``updater``, ``accumulation`` (steps); ``schedule``, ``averaging``, ``evaluation``,
``label_accuracy``; ``log_report``, ``loss_scale_log``, ``tensorboard``, ``console`` (the log); ``gradient_histogram``,
``gradient_counts``, ``gradient_log``, ``plots``, ``pictures`` (pictures); ``snapshots``, ``stopping``, ``divergence``,
``heartbeat``, ``unsaved_triggers`` (interruptions and failures).
"""

from mixprec.training.gradient_histogram import GradientHistogram
from mixprec.training.log_report import LogReport
from mixprec.training.loss_scale_log import LossScaleLog
from mixprec.training.updater import CapturedUpdater

__all__ = ["CapturedUpdater", "GradientHistogram", "LogReport", "LossScaleLog"]
