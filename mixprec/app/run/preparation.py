"""Preparation of training: config, device, results folder, network and images, each checked on all ranks.

:mod:`mixprec.app.run.training_run` calls :func:`prepare` first. Nothing is written yet.
"""

import argparse
import contextlib
import dataclasses
import os
import re
import warnings
from typing import Any

from mixprec.app import config as configs
from mixprec.app.parts import (
    devices,
    images,
    kept_activations,
    own_extensions,
    rank_states,
    snapshot_settings,
    training_loss,
)
from mixprec.app.parts.model import convert_model, make_model
from mixprec.app.parts.networks import find as find_network
from mixprec.app.parts.optimizers import build_optimizer, described_parts, described_preconditioner
from mixprec.app.parts.rates import described_rate
from mixprec.app.parts.starting_weights import StartingWeights
from mixprec.app.parts.trainer import build_trainer
from mixprec.app.run import needs, output
from mixprec.app.run.lock import locked
from mixprec.base import VERSION
from mixprec.base.messages import OneLineError, one_line
from mixprec.training import snapshots, tensorboard


def prepare(arguments, networks, ranks, lock):
    """Returns a :class:`Run`.

    Args:
        arguments: parsed arguments of the command line.
        networks: as for :func:`mixprec.app.commands.train.main`.
        ranks: from :mod:`mixprec.distributed.processes`.
        lock: :class:`contextlib.ExitStack`, which gets the lock of an existing results folder.

    Raises:
        mixprec.base.messages.OneLineError: bad input; with several ranks all get
            :class:`mixprec.distributed.processes.Refused`.
    """
    with ranks.together():
        config, network = _read_config(arguments, networks)
    ranks.compare({"--out": arguments.out, "--resume": arguments.resume, "--dry-run": arguments.dry_run})
    ranks.compare(configs.flat(config))
    device, reason = devices.choose(config, ranks, lambda: _placed(arguments))
    results = out, _, snapshot, _ = ranks.first(_find_results, arguments, config, ranks, lock)
    with ranks.together(), _placed(arguments):  # before the images are scanned, which may take minutes
        training_loss.check(config, device, ranks.size)
        extensions = own_extensions.find(config.log) if ranks.is_first else []
        needs.check_size(config, network, device)
        # A snapshot has its own weights.
        weights = StartingWeights(config.model) if config.model.weights is not None and snapshot is None else None
        model = make_model(config, network, device, weights)
    if not arguments.dry_run:
        ranks.connect()
    optimizer = build_optimizer(config, model, ranks.communicator)  # ranks communicate in it
    with ranks.together(), _placed(arguments):
        report = convert_model(config, model, device, ranks.rank)
    train, val = _open_sources(config, ranks)
    if arguments.resume is not None:
        ranks.first(images.check_records, out, train)
    return Run(arguments, config, ranks, device, reason, *results, weights, optimizer, report, train, val, extensions)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to be built.

    Attributes:
        arguments: parsed arguments of the command line.
        config: :class:`mixprec.app.config.Config`.
        ranks: from :mod:`mixprec.distributed.processes`.
        device: device specifier of Chainer.
        reason: reason for this device.
        out: results folder.
        is_new: whether it did not exist.
        snapshot: snapshot to resume from, or ``None``.
        changes: descriptions of the changes of the config since then.
        weights: initial weights, :class:`mixprec.app.parts.starting_weights.StartingWeights`, or ``None``.
        optimizer: from :func:`mixprec.app.parts.optimizers.build_optimizer`; its model is on the device.
        report: report of the conversion of the model.
        train: training images, from :func:`mixprec.app.parts.images.open_sources`.
        val: validation images, from the same function, or ``None``.
        extensions: the user's own, from :func:`mixprec.app.parts.own_extensions.find`; only rank 0 has them.
    """

    arguments: argparse.Namespace
    config: configs.Config
    ranks: Any
    device: str
    reason: str
    out: str
    is_new: bool
    snapshot: str | None
    changes: list
    weights: StartingWeights | None
    optimizer: Any
    report: Any
    train: Any
    val: Any
    extensions: list

    def build(self, ranks):
        """Builds the trainer, which begins or resumes.

        Args:
            ranks: ranks that the trainer communicates with; in a dry run it is alone.

        Returns:
            ``(trainer, limit, resolved)``: the second is a :class:`mixprec.app.parts.kept_activations.Limit`, the third
            the config that is written beside the results.
        """
        limit = kept_activations.limit(self.config, self.optimizer, self.report, self.out, ranks)
        memory = None if self.arguments.dry_run else limit.memory  # it would need the results folder
        trainer = build_trainer(self.config, self.optimizer, self.train, self.val, self.out, ranks, memory)
        with ranks.together(), _placed(self.arguments):
            own_extensions.extend(trainer, self.extensions)
        if self.snapshot is not None:
            self._load(trainer, ranks)
        history = trainer.get_extension(snapshot_settings.Settings.name).changes
        history += [f"since iteration {trainer.updater.iteration}: {change}" for change in self.changes]
        resolved = configs.dump(
            self.config, source=self.arguments.config, overrides=self.arguments.set, version=VERSION, changes=history
        )
        return trainer, limit, resolved

    def describe(self, limit):
        """Returns a description of the run as a list of lines; ``limit`` is from :meth:`build`."""
        lines = [f"device: {self.device} ({self.reason})"]
        if self.ranks.described is not None:
            lines.append(one_line(f"ranks: {self.ranks.described}"))
        lines += images.describe(self.config, self.train, self.val, self.optimizer.target.device)
        rate = described_rate(self.config, self.ranks.size)
        lines.append(f"optimizer: {self.config.optimizer.name}, learning rate {rate}")
        for name, described in (("parts", described_parts), ("preconditioner", described_preconditioner)):
            words = described(self.optimizer)
            if words is not None:
                lines.append(f"{name}: {words}")
        weights = training_loss.class_weights(self.config, self.train)
        if weights is not None:
            lines.append(f"class weights: from {weights.min():.3g} to {weights.max():.3g}")
        if self.weights is not None:
            lines.append(one_line(f"weights: {self.weights}"))
        lines += limit.lines
        if self.config.capture.mode != "off":
            lines.append(f"capture: {_captures(self.device)}")
        if self.snapshot is not None:
            lines += [f"resuming from {one_line(self.snapshot)}", *(f"changed: {change}" for change in self.changes)]
        return lines

    def _load(self, trainer, ranks):
        arrays = ranks.first(snapshots.read, self.snapshot)
        with ranks.together():
            iterator = trainer.updater.get_iterator("main")
            arrays = rank_states.own(arrays, self.config, len(self.train), ranks, iterator, self.snapshot)
            with warnings.catch_warnings():  # the console has a line about the change of the config
                warnings.filterwarnings("ignore", "the snapshot has no matrices of K-FAC")
                with own_extensions.as_saved(trainer, self.extensions, arrays):
                    snapshots.load(self.snapshot, trainer, arrays)
            if ranks.is_first:
                snapshots.check_newest(self.snapshot, trainer.updater.iteration, self.out)
            snapshots.check_length(self.snapshot, trainer.updater.epoch_detail, self.config.training.epochs)


def _read_config(arguments, networks):
    """Returns the config, and the callable that makes its network."""
    config = configs.load(arguments.config, arguments.set, choices={"model.arch": sorted(networks)})
    with _placed(arguments):
        network = find_network(config.model, networks)
        problem = tensorboard.missing() if config.log.tensorboard else None
        if problem:
            raise configs.ConfigError(f"'log.tensorboard' {problem}")
    return config, network


def _find_results(arguments, config, ranks, lock):
    """Returns ``out``, ``is_new``, ``snapshot`` and ``changes`` of a :class:`Run`; locks an existing folder."""
    output.check_snapshot(arguments.resume)
    out = output.choose(arguments.out, arguments.resume, arguments.config)
    output.check_writable(out)
    is_new = not os.path.isdir(out)
    if not is_new and not arguments.dry_run:  # which writes nothing
        lock.enter_context(locked(out))
        ranks.works_in(out)
    snapshot = output.snapshot_to_resume(out, arguments.resume)
    changes = [] if snapshot is None else snapshot_settings.compare(snapshot, config, ranks.size)
    return out, is_new, snapshot, changes


def _open_sources(config, ranks):
    """Opens the images, on each machine first on one rank: the others use its caches."""
    found = problem = None
    if ranks.local_rank == 0:
        try:
            found = images.open_sources(config, ranks.size)
        except (OneLineError, MemoryError) as error:
            problem = error
    ranks.gather(None)
    with ranks.together():
        if problem is not None:
            raise problem
        train, val = found or images.open_sources(config, ranks.size)
    for name, source in (("data.train", train), ("data.val", val)):
        ranks.compare(
            {
                f"the SHA-256 of the images' names and labels in {name}": getattr(source, "fingerprint", None),
                f"the SHA-256 of the images' sizes in bytes in {name}": getattr(source, "size_fingerprint", None),
            }
        )
    return train, val


@contextlib.contextmanager
def _placed(arguments):
    """Puts the location, ``--set`` or the file, before the key in errors that begin with the key."""
    try:
        yield
    except configs.ConfigError as error:
        key = re.match(r"'([^']*)' ", str(error))
        location = configs.location(key and key[1], arguments.set, arguments.config)
        raise configs.ConfigError(location, str(error)) from error


def _captures(device):
    if device == "@numpy":
        return "none, CPUs have no graphs: steps are eager"
    return "after a few eager steps each is one CUDA graph; if that is impossible, a warning says why"
