"""Training on Chainer's Trainer: the parts between a config and a finished run.

The extensions and the updater below fit into any Trainer whose optimizer is a
:class:`mixprec.MixedPrecisionOptimizer`. The training command goes through the modules in this order:

===========================================================  ====================================================
:mod:`~mixprec.app.commands.train`, ``processes``              arguments; which rank this is (``rank_watch``)
:mod:`~mixprec.app.run.training_run`                        a run on one page: prepare, build, train, finish
:mod:`~mixprec.app.run.preparation`, ``devices``,           what may be refused before anything is written
``output``, ``lock``, ``snapshot_settings``
:mod:`~mixprec.app.parts.model`, ``networks``,                the network, the optimizer on it, and the conversion
``starting_weights``, ``optimizers``
``images``, ``stages``                                       what reads images; their sizes and epochs
:mod:`~mixprec.app.parts.kept_activations`                    the section ``memory`` of a config
:mod:`~mixprec.app.parts.trainer`, ``updater``,               the trainer, its steps, and its extensions:
``accumulation``                                             ``schedule``, ``averaging``, ``evaluation``; what logs
                                                             and draws; ``snapshots``, ``rank_states``; ``stopping``,
                                                             ``heartbeat``, ``divergence``
:mod:`~mixprec.app.run.needs`, ``estimate``, ``timing``     whether disk and memory are enough; the dry run
:mod:`~mixprec.app.run.rehearsal`                           on a GPU, before the first step
===========================================================  ====================================================
"""

from mixprec.training.gradient_histogram import GradientHistogram
from mixprec.training.log_report import LogReport
from mixprec.training.loss_scale_log import LossScaleLog
from mixprec.training.updater import CapturedUpdater

__all__ = ["CapturedUpdater", "GradientHistogram", "LogReport", "LossScaleLog"]
