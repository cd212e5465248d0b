"""A run of the training command, from its arguments to a results folder.

:mod:`mixprec.training.command` calls :func:`carry_out` when it has parsed them, and prints what this raises.
"""

import contextlib
import errno
import functools
import os

from chainer import serializers

import mixprec
from mixprec import config as configs
from mixprec import files
from mixprec.command_line import one_line
from mixprec.data.data_error import DataError
from mixprec.messages import OneLineError
from mixprec.training import (
    devices,
    images,
    needs,
    output,
    rank_states,
    snapshot_settings,
    snapshots,
    surroundings,
    tensorboard,
)
from mixprec.training.averaging import averaged_weights
from mixprec.training.evaluation import Evaluator
from mixprec.training.lock import locked
from mixprec.training.model import build_model
from mixprec.training.networks import find as find_network
from mixprec.training.schedule import described_rate
from mixprec.training.stopping import Stopped
from mixprec.training.trainer import build_trainer

_FULL = (errno.ENOSPC, errno.EDQUOT)  # the log and plots are written, too


class Failed(Exception):
    """Training began, and what it needs is gone."""


@contextlib.contextmanager
def _failing(out):
    """Around training, where a gone image is no bad input any more, nor is what happens to the results folder."""
    try:
        yield
    except DataError as error:
        raise Failed(str(error)) from error
    except MemoryError as error:
        raise Failed(f"out of memory ({error}); --dry-run says what a run needs") from error
    except OSError as error:
        is_of_results = os.path.abspath(str(error.filename or "")).startswith(os.path.abspath(out) + os.sep)
        if error.errno not in _FULL and not is_of_results:
            raise
        raise Failed(f"{error.filename}: {error.strerror}" if error.filename else error.strerror) from error


def carry_out(arguments, networks, ranks):
    """Trains, or makes a dry run.

    Args:
        arguments: of the command line.
        networks: as for :func:`mixprec.training.command.main`.
        ranks: of :mod:`mixprec.training.processes`.

    Raises:
        Failed: training began.
        mixprec.messages.OneLineError: bad input; on all ranks :class:`mixprec.training.processes.Refused`, if there are
            several.
    """
    with ranks.together():
        config = configs.load(arguments.config, arguments.set, choices={"model.arch": sorted(networks)})
        with _placed(arguments):
            network = find_network(config.model, networks)
        problem = tensorboard.missing() if config.log.tensorboard else None
        if problem:
            raise configs.ConfigError(arguments.config, f"'log.tensorboard' {problem}")
    ranks.compare({"--out": arguments.out, "--resume": arguments.resume, "--dry-run": arguments.dry_run})
    ranks.compare(configs.flat(config))
    device, reason = devices.choose(arguments.config, config, ranks)
    with contextlib.ExitStack() as lock:
        out, is_new, snapshot, changes = ranks.first(_find_results, arguments, config, ranks, lock)
        with ranks.together(), _placed(arguments):  # before the images are scanned, which may take minutes
            needs.check_size(config, network, device)
            model, report = build_model(config, network, device, ranks.rank)
        train, val = _open_sources(config, ranks)
        if arguments.resume is not None:
            ranks.first(images.check_records, out, train)
        lines = [
            f"device: {device} ({reason})",
            *([] if ranks.described is None else [one_line(f"ranks: {ranks.described}")]),
        ]

        def build(ranks):
            trainer = build_trainer(config, model, train, val, device, out, ranks)
            if snapshot is not None:
                _load(snapshot, trainer, config, len(train), ranks, out)
            history = trainer.get_extension(snapshot_settings.Settings.name).changes
            history += [f"since iteration {trainer.updater.iteration}: {change}" for change in changes]
            resolved = configs.dump(
                config,
                source=arguments.config,
                overrides=arguments.set,
                version=mixprec.__version__,
                changes=history,
            )
            return trainer, resolved

        def describe(trainer):
            described = [*lines, *images.describe(config, train, val, trainer.updater.device)]
            described.append(f"optimizer: {config.optimizer.name}, learning rate {described_rate(config, ranks.size)}")
            if config.capture.mode != "off":
                described.append(f"capture: {_captures(device)}")
            if snapshot is not None:
                described += [f"resuming from {one_line(snapshot)}", *(f"changed: {change}" for change in changes)]
            return described

        def dry_run():
            apart = ranks.apart()
            trainer, resolved = build(apart)
            described = describe(trainer)
            estimate = needs.dry_run(config, trainer, report, train, val, out, apart)
            print("\n".join([*described, "", resolved, str(report), "", estimate, ""]))
            print(f"dry run: all is well; without --dry-run the results would go to {one_line(out)}")

        def begin(trainer):
            needs.check_disk(config, trainer, len(train), out, ranks.size)
            if is_new:  # or was, when this run began
                lock.enter_context(output.created(out))
                if output.snapshot_to_resume(out, arguments.resume) != snapshot:
                    raise output.OutputError(f"{out}: another run has used it meanwhile; start again")
            print("\n".join([*describe(trainer), f"results: {one_line(out)}"]), flush=True)

        if arguments.dry_run:
            ranks.first(dry_run)
            return
        ranks.connect()
        trainer, resolved = build(ranks)
        first = trainer.updater.iteration
        ranks.first(begin, trainer)
        with _failing(out):
            if ranks.is_first:
                _write_about(out, resolved, report, train, val, ranks, resumed=snapshot is not None)
            _train(config, trainer, first, out, ranks)


def _find_results(arguments, config, ranks, lock):
    """Returns the results folder, whether it is new, the snapshot to go on from, and what has changed since."""
    out = output.choose(arguments.out, arguments.resume, arguments.config)
    output.check_writable(out)
    is_new = not os.path.isdir(out)
    if not is_new and not arguments.dry_run:  # which writes nothing
        lock.enter_context(locked(out))
    snapshot = output.snapshot_to_resume(out, arguments.resume)
    changes = [] if snapshot is None else snapshot_settings.compare(snapshot, config, ranks.size)
    return out, is_new, snapshot, changes


def _open_sources(config, ranks):
    """Opens the images, on each machine first on one rank: the others find what it has scanned."""
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
        ranks.compare({f"the SHA-256 of files and labels in {name}": getattr(source, "fingerprint", None)})
    return train, val


def _load(snapshot, trainer, config, count, ranks, out):
    arrays = ranks.first(snapshots.read, snapshot)
    with ranks.together():
        iterator = trainer.updater.get_iterator("main")
        arrays = rank_states.own(arrays, config, count, ranks, iterator, snapshot)
        snapshots.load(snapshot, trainer, arrays)
        if ranks.is_first:
            snapshots.check_newest(snapshot, trainer.updater.iteration, out)
        snapshots.check_length(snapshot, trainer.updater.epoch_detail, config.training.epochs)


def _write_about(out, resolved, report, train, val, ranks, *, resumed):
    """Writes what the results folder says about a run before its first step."""
    output.prepare(out, resumed=resumed)
    about = surroundings.report() if ranks.described is None else surroundings.report(ranks.described)
    for name, text in ((output.CONFIG, resolved), ("environment.txt", about), ("conversion.txt", f"{report}\n")):
        output.write(os.path.join(out, name), text, resumed=resumed)
    images.write_records(out, train, val)


def _train(config, trainer, first, out, ranks):
    try:
        trainer.run(show_loop_exception_msg=False)
    except Stopped as stopped:
        if stopped.failure is not None:
            raise stopped.failure from None
        where = f"{'in the evaluation' if stopped.in_evaluation else 'at the end'} of iteration"
        if ranks.is_first:
            iteration, newest = trainer.updater.iteration, one_line(snapshots.newest(out))
            print(f"stopped by SIGTERM {where} {iteration}; --resume auto goes on from {newest}")
        return
    _finish(config, trainer, first, out, ranks)


def _finish(config, trainer, first, out, ranks):
    """Writes and says what there is to say at the end of training; ``first`` is where this process began."""
    optimizer, weights = trainer.updater.get_optimizer("main"), os.path.join(out, "model.npz")
    states, average = rank_states.RankStates(ranks), functools.partial(averaged_weights, trainer)
    if config.capture.mode != "off" and ranks.is_first:
        report, steps = os.path.join(out, "capture.txt"), trainer.updater.iteration - first
        files.write_text(report, _captured(config, trainer))
        replays = f"{trainer.updater.step.replays} of {steps} steps were launches of a graph"
        print(f"capture: {replays}; more in {one_line(report)}")
    with states.evaluated(optimizer.target, average):
        if ranks.is_first:
            _save_weights(weights, optimizer)
    if not ranks.is_first:
        return
    print(f"results, log and plots: {one_line(out)}; weights in FP32 for plain Chainer: {one_line(weights)}")
    accuracies = [
        entry["validation/main/accuracy"]
        for entry in trainer.get_extension("LogReport").log
        if "validation/main/accuracy" in entry
    ]
    if accuracies:
        print(f"validation accuracy {accuracies[-1]:.4f}")


@contextlib.contextmanager
def _placed(arguments):
    """Puts the place, ``--set`` or the file, before the key in what is wrong with the network."""
    try:
        yield
    except configs.ConfigError as error:
        keys = [text.partition("=")[0].strip() for text in arguments.set]
        place = "--set" if any(str(error).startswith(f"'{key}' ") for key in keys) else arguments.config
        raise configs.ConfigError(place, str(error)) from error


def _captures(device):
    if device == "@numpy":
        return "none, there is no graph on a CPU: steps are eager"
    return "after a few eager steps each is one CUDA graph; if that cannot be, a warning says why"


def _captured(config, trainer):
    text = f"training\n{trainer.updater.step.report()}\n"
    if not config.capture.evaluation or config.data.format == "synthetic":
        return text
    evaluate = trainer.get_extension(Evaluator.default_name).eval_func
    return f"{text}\nevaluation\n{evaluate.report()}\n"


def _save_weights(path, optimizer):
    """Saves the network under the names ``load_npz`` of the plain network looks for; its masters are saved, in FP32."""
    with files.replacing(path) as temporary:
        serializers.save_npz(temporary, optimizer.target.predictor, compression=False)
