"""Builds Chainer's Trainer from a config: updater, evaluation, snapshots, log and schedule.

The training command calls :func:`build_trainer` when model and images are there.
"""

import functools
import os

from chainer import training
from chainer.training import extensions, triggers
from chainer.training.extension import PRIORITY_WRITER

from mixprec import graph_capture
from mixprec.app.parts.images import converter_of, mixing_of, train_iterator, val_iterator
from mixprec.app.parts.optimizers import attribute
from mixprec.app.parts.rank_states import JointSnapshot, RankStates
from mixprec.app.parts.rates import damping_at, rates_of
from mixprec.app.parts.snapshot_settings import Settings
from mixprec.app.parts.stages import steps_of
from mixprec.app.parts.training_loss import class_weights
from mixprec.distributed.processes import Alone
from mixprec.training import snapshots
from mixprec.training.accumulation import Weighing
from mixprec.training.averaging import WeightAverage
from mixprec.training.console import ProgressBar, Shown, Table
from mixprec.training.divergence import SoundLosses
from mixprec.training.evaluation import Evaluator
from mixprec.training.gradient_histogram import GradientHistogram
from mixprec.training.heartbeat import Heartbeat
from mixprec.training.log_report import LOG, LogReport
from mixprec.training.loss_scale_log import LossScaleLog
from mixprec.training.plots import Plots
from mixprec.training.schedule import Schedule
from mixprec.training.stopping import Stopping
from mixprec.training.tensorboard import TensorBoard
from mixprec.training.updater import CapturedUpdater, Throughput, TimedUpdater

# After all extensions that read the step: a run stopped in an evaluation resumes with it, and has only weights.
_EVALUATION = PRIORITY_WRITER - 1


def build_trainer(config, optimizer, train, val, out, ranks=None, memory=None):
    """Builds the trainer with its iterators and extensions. Writes nothing.

    Args:
        config: :class:`mixprec.app.config.Config`.
        optimizer: from :func:`mixprec.app.parts.optimizers.build_optimizer`; its model is on the device.
        train: images to train on, from :func:`mixprec.app.parts.images.open_sources`.
        val: images to evaluate on, from the same function; ``None`` for no evaluation.
        out: results folder; it need not exist yet.
        ranks: from :mod:`mixprec.distributed.processes`; ``None`` for one process. Rank 0 logs, draws and saves; all
            ranks have the extensions that compute.
        memory: from :func:`mixprec.offload`, which limits the memory of a step; ``None`` for no limit.

    Returns:
        chainer.training.Trainer: its updater is a :class:`~mixprec.training.CapturedUpdater` unless ``capture.mode`` is
            off.

    Raises:
        mixprec.graph_capture.CaptureError: ``capture.mode`` is required, and no step can be captured.
    """
    model, ranks = optimizer.target, ranks or Alone()
    device, converter = model.device, converter_of(config)
    weights = class_weights(config, train)
    if weights is not None:
        model.class_weights = device.send(weights)
    shard = {"rank": ranks.rank, "ranks": ranks.size}
    updaters, evaluate, capture = TimedUpdater, None, config.capture
    if capture.mode != "off":
        keywords = {
            "graphs": capture.max_graphs,
            "other_shapes": capture.dynamic_shapes,
            "required": capture.mode == "required",
        }
        if capture.evaluation:
            evaluate = graph_capture.capture_evaluation(model, **keywords)
        updaters = functools.partial(CapturedUpdater, second_stream=capture.second_stream, **keywords)
    updater = updaters(
        train_iterator(config, train, device, **shard),
        optimizer,
        converter=converter,
        device=device,
        accumulate=config.training.accumulation_steps,
        ranks=ranks.size,
        weighing=None if weights is None else Weighing(model.weight, ranks.mean),
        memory=memory,
        mixing=mixing_of(config, ranks.rank),
    )
    snapshot, states = snapshots.extension(config.snapshot.keep), RankStates(ranks)
    if ranks.size > 1:
        snapshot = JointSnapshot(snapshot, states, ranks.is_first)
    stopping = Stopping(snapshot, ranks.any)
    # Chainer makes the folder, and only rank 0 writes.
    where = out if ranks.is_first else os.curdir
    trainer = training.Trainer(updater, stopping.end(config.training.epochs, "epoch"), out=where)

    steps = steps_of(config, len(train), ranks.size)
    heartbeat, losses = Heartbeat(config.training.epochs, steps), SoundLosses(ranks)

    def before_batch():
        stopping.check()
        heartbeat.evaluating()  # on rank 0, where it has been initialized

    each_snapshot = _EveryAndAtTheEnd(config.snapshot.trigger, config.training.epochs, losses.allow_snapshot)
    if config.training.ema_decay is not None:
        trainer.extend(WeightAverage(optimizer, config.training.ema_decay))
    if val is not None:
        validation = Shown(
            val_iterator(config, val, device, one_shape=evaluate is not None, **shard),
            len(val) // ranks.size,
            before_batch=before_batch,
        )
        each_epoch = stopping.evaluation(1, "epoch")
        trainer.extend(stopping.snapshot_before(each_epoch, each_snapshot), priority=_EVALUATION)
        trainer.extend(
            Evaluator(
                validation,
                model,
                converter=converter,
                device=device,
                eval_func=evaluate,
                weights=lambda: states.evaluated(trainer),
                gather=ranks.gather,
            ),
            trigger=each_epoch,
            priority=_EVALUATION,
        )
        if config.snapshot.best:
            trainer.extend(snapshots.BestSnapshot(out, ranks, states.in_files, losses.allow_snapshot))
    log = LogReport(trigger=_log_trigger(config), filename=LOG if ranks.is_first else None, gather=ranks.gather)
    if ranks.is_first:
        trainer.extend(heartbeat)
        _report(trainer, config, optimizer, log, steps, len(train), val is not None)
    else:
        trainer.extend(log)
    rates = rates_of(config, len(train), ranks.size)
    trainer.extend(Schedule(optimizer, attribute(config.optimizer.name), rates.at))
    if optimizer.preconditioner is not None:
        trainer.extend(Schedule(optimizer.preconditioner, "damping", functools.partial(damping_at, config)), "Damping")
    trainer.extend(snapshot, trigger=each_snapshot)
    trainer.extend(losses)
    trainer.extend(stopping)
    trainer.extend(Settings(config, ranks.size))
    if ranks.size > 1:
        trainer.extend(states)
    return trainer


def _report(trainer, config, optimizer, log, steps, images, has_validation):
    """Adds the extensions that log, print and draw."""

    def at_each_entry(reporter, name=None):
        trainer.extend(reporter, name, trigger=_log_trigger(config))

    lr = attribute(config.optimizer.name)
    at_each_entry(extensions.observe_value("lr", lambda trainer: getattr(optimizer, lr)), "lr")
    if optimizer.preconditioner is not None:
        at_each_entry(extensions.observe_value("damping", lambda _: optimizer.preconditioner.damping), "damping")
    at_each_entry(LossScaleLog(optimizer))
    at_each_entry(Throughput(images))
    trainer.extend(log)
    at_each_entry(Table(config.model.classes, validation=has_validation))
    at_each_entry(Plots(log, steps))
    if config.log.gradient_histogram is not None:
        trainer.extend(
            GradientHistogram(optimizer), trigger=config.log.gradient_histogram_trigger, priority=PRIORITY_WRITER
        )
    if config.log.tensorboard:
        at_each_entry(TensorBoard(log))
    trainer.extend(ProgressBar(images, config.training.epochs))


def _log_trigger(config):
    return _EveryAndAtTheEnd(config.log.trigger, config.training.epochs)


class _EveryAndAtTheEnd(triggers.IntervalTrigger):
    """An interval, and always the end of training; each time only if ``allowed`` for a trainer."""

    def __init__(self, interval, epochs, allowed=lambda trainer: True):
        super().__init__(*interval)
        self._epochs, self._allowed = epochs, allowed

    def __call__(self, trainer):
        called = self._previous_iteration == trainer.updater.iteration  # in this iteration, before a resume
        due = super().__call__(trainer) or (trainer.updater.epoch_detail >= self._epochs and not called)
        return due and self._allowed(trainer)
