"""Builds Chainer's Trainer from a config."""

import dataclasses
import functools
import math

import chainer
import chainer.links as L
import numpy as np
from chainer import optimizers, training
from chainer.optimizer_hooks import WeightDecay
from chainer.training import extensions, triggers

import mixprec
from mixprec import graph_capture
from mixprec.backends.cudnn import settings as cudnn_settings
from mixprec.data.batch import to_nchw
from mixprec.data.dali import DaliIterator
from mixprec.functions import reset_dropout
from mixprec.training import snapshots
from mixprec.training.console import Lines, ProgressBar
from mixprec.training.evaluation import Evaluator
from mixprec.training.gradient_histogram import GradientHistogram
from mixprec.training.log_report import LogReport
from mixprec.training.loss_scale_log import LossScaleLog
from mixprec.training.plots import Plots
from mixprec.training.schedule import Schedule
from mixprec.training.updater import CapturedUpdater, Throughput, TimedUpdater

_EXAMPLE = 2  # images on which the network is looked at, on the CPU
_COLUMNS = (
    "epoch",
    "main/loss",
    "main/accuracy",
    "validation/main/loss",
    "validation/main/accuracy",
    "lr",
    "loss_scale",
    "skipped",
    "images/s",
)


def build_model(config, network, device):
    """Seeds the random generators, tells cuDNN what the config says, builds the classifier, and converts it.

    Args:
        config: :class:`mixprec.config.Config`.
        network: callable that takes the number of classes and returns a Chainer link from images to logits.
        device: device specifier of Chainer (``"@numpy"``, ``"@cupy:0"``).

    Returns:
        ``(model, report)``: an ``L.Classifier`` on the device, and the report of the conversion.
    """
    device = chainer.get_device(device)
    device.use()
    for xp in {np, device.xp}:
        xp.random.seed(config.training.seed)
    reset_dropout()  # whose state is drawn from np.random once in a process
    wanted = dataclasses.asdict(config.cudnn)
    cudnn_settings.configure(workspace=wanted.pop("workspace_mib") * 2**20, **wanted)
    model = L.Classifier(network(config.model.classes))
    report = mixprec.convert(
        model,
        np.zeros((_EXAMPLE, 3, config.data.size, config.data.size), np.float32),
        compute=config.precision.compute,
        layout=config.model.layout,
        fuse=config.model.fuse,
    )
    model.to_device(device)
    return model, report


def build_optimizer(config, model):
    """Returns the :class:`~mixprec.MixedPrecisionOptimizer` that the config describes, set up on ``model``."""
    settings = config.optimizer
    own = settings.name in ("LARS", "LAMB")  # of this package; they have weight decay in their formula
    keywords = {attribute(settings.name): settings.lr}
    for name in ("momentum", "trust_coefficient"):
        if getattr(settings, name) is not None:
            keywords[name] = getattr(settings, name)
    if own:
        keywords["weight_decay"] = settings.weight_decay
    inner = getattr(mixprec if own else optimizers, settings.name)(**keywords)
    optimizer = mixprec.MixedPrecisionOptimizer(
        inner,
        _loss_scale(config.loss_scale),
        batched=config.update.batched,
        no_decay=None if settings.decay_norm_and_bias else "ndim <= 1",
    ).setup(model)
    if settings.weight_decay > 0 and not own:
        optimizer.add_hook(WeightDecay(settings.weight_decay))
    return optimizer


def attribute(optimizer_name):
    """Returns the name of an optimizer's learning rate."""
    return "alpha" if optimizer_name in ("Adam", "AMSGrad", "AdaBound", "AMSBound") else "lr"


def build_trainer(config, model, train, val, device, out):
    """Builds the trainer with its iterators, optimizer and extensions. Writes nothing.

    Args:
        config: :class:`mixprec.config.Config`.
        model: classifier from :func:`build_model`.
        train: :class:`mixprec.data.folders.ImageFolder` to train on.
        val: likewise, to evaluate on.
        device: device specifier of Chainer.
        out: results folder; it need not exist yet.

    Returns:
        chainer.training.Trainer: its updater is a :class:`~mixprec.training.CapturedUpdater` if the config says so.

    Raises:
        mixprec.graph_capture.CaptureError: ``capture.mode`` is required, and no step can be captured.
    """
    device = chainer.get_device(device)
    optimizer = build_optimizer(config, model)
    steps, evaluate = TimedUpdater, None
    if config.capture.mode != "off":
        keywords = dataclasses.asdict(config.capture)
        keywords["required"] = keywords.pop("mode") == "required"
        if keywords.pop("evaluation"):
            evaluate = graph_capture.capture_evaluation(model, **keywords)
        steps = functools.partial(CapturedUpdater, **keywords)
    updater = steps(_iterator(config, train, train=True), optimizer, converter=to_nchw, device=device)
    trainer = training.Trainer(updater, (config.training.epochs, "epoch"), out=out)

    lr = attribute(config.optimizer.name)
    iteration_epochs = 1 / math.ceil(len(train) / config.training.batch_size)

    def at(interval):
        return _EveryAndAtTheEnd(interval, config.training.epochs)

    log = LogReport(trigger=at(config.log.trigger))
    trainer.extend(
        Evaluator(_iterator(config, val, train=False), model, converter=to_nchw, device=device, eval_func=evaluate)
    )
    trainer.extend(
        extensions.observe_value("lr", lambda trainer: getattr(optimizer, lr)),
        name="lr",
        trigger=at(config.log.trigger),
    )
    trainer.extend(LossScaleLog(optimizer), trigger=at(config.log.trigger))
    trainer.extend(Throughput(len(train)), trigger=at(config.log.trigger))
    trainer.extend(log)
    trainer.extend(
        extensions.PrintReport(_COLUMNS, log_report="LogReport", out=Lines()), trigger=at(config.log.trigger)
    )
    trainer.extend(Plots(log, iteration_epochs), trigger=at(config.log.trigger))
    if config.log.gradient_histogram is not None:
        trainer.extend(GradientHistogram(optimizer), trigger=config.log.gradient_histogram_trigger)
    trainer.extend(ProgressBar(len(train), config.training.epochs))
    trainer.extend(
        Schedule(
            optimizer,
            lr,
            peak=config.optimizer.lr,
            kind=config.schedule.kind,
            epochs=config.training.epochs,
            warmup_epochs=config.schedule.warmup_epochs,
            iteration_epochs=iteration_epochs,
        )
    )
    trainer.extend(snapshots.extension(config.snapshot.keep), trigger=at(config.snapshot.trigger))
    return trainer


class _EveryAndAtTheEnd(triggers.IntervalTrigger):
    """An interval, and the end of training wherever it falls."""

    def __init__(self, interval, epochs):
        super().__init__(*interval)
        self._epochs = epochs

    def __call__(self, trainer):
        return super().__call__(trainer) or trainer.updater.epoch_detail >= self._epochs


def _iterator(config, images, *, train):
    data = config.data
    if train:
        batch_size, geometry = config.training.batch_size, {"crop_area": data.crop_area, "flip": data.flip}
    else:
        batch_size, geometry = min(config.training.batch_size, len(images)), {"resize": data.resize}
    return DaliIterator(
        images,
        batch_size,
        train=train,
        size=data.size,
        mean=data.mean,
        std=data.std,
        dtype="float16" if config.precision.compute == "float16" else "float32",
        seed=config.training.seed,
        threads=data.threads,
        **geometry,
    )


def _loss_scale(settings):
    if settings.mode == "none":
        return mixprec.NoLossScale()
    if settings.mode == "static":
        return mixprec.StaticLossScale(settings.init)
    arguments = dataclasses.asdict(settings)
    del arguments["mode"]
    return mixprec.DynamicLossScale(**arguments)
