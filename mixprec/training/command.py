"""The training command: from its arguments to a results folder."""

import contextlib
import errno
import functools
import os
import sys

from chainer import serializers

import mixprec
from mixprec import config as configs
from mixprec import environment, files, interruption
from mixprec.backends.capture_error import CaptureError
from mixprec.command_line import Parser, one_line
from mixprec.data.data_error import DataError
from mixprec.loss_scale import LossScaleExhausted
from mixprec.recipes import config_path
from mixprec.training import images, needs, output, snapshot_settings, snapshots, surroundings, tensorboard
from mixprec.training.averaging import averaged_weights
from mixprec.training.evaluation import Evaluator
from mixprec.training.lock import LockError, locked
from mixprec.training.model import build_model
from mixprec.training.networks import find as find_network
from mixprec.training.schedule import described_rate
from mixprec.training.stopping import Stopped
from mixprec.training.trainer import build_trainer

_BAD_INPUT = (configs.ConfigError, DataError, output.OutputError, LockError, snapshots.SnapshotError, needs.DoesNotFit)
_FAILED = (LossScaleExhausted, CaptureError, snapshots.WriteError)
_FULL = (errno.ENOSPC, errno.EDQUOT)  # the log and plots are written, too
_GO_ON = "--resume auto goes on from the last snapshot"


def main(argv, networks):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: the architectures ``model.arch`` may name, beside import paths: a dict from name to a callable that
            takes the number of classes and returns a Chainer link.

    Returns:
        int: exit code. 0: done, or stopped by SIGTERM in training, with a snapshot to go on from. 1: it began and
        failed: training diverged, a step cannot be captured and that is required, an image or a process of the loader
        is gone, memory or disk are full; one line on standard error says which. 2: bad input, one line on standard
        error, nothing left behind. 130: Ctrl-C. SIGTERM before the first iteration ends the process as it does any
        other. An unexpected error is a traceback, and 1.
    """
    arguments = _parse(argv)
    try:
        with interruption.raised_once():
            _run(arguments, networks)
    except _BAD_INPUT as error:
        return _failure(str(error), 2)
    except MemoryError as error:
        return _failure(f"out of memory before training began ({error}); --dry-run says what a run needs", 2)
    except _FAILED as error:
        return _failure(str(error), 1)
    except _Failed as error:
        return _failure(f"{error}; {_GO_ON}", 1)
    except KeyboardInterrupt:
        print(f"interrupted; {_GO_ON}, if there is one", file=sys.stderr)
        return interruption.INTERRUPTED
    return 0


def _failure(text, code):
    print(f"error: {one_line(text)}", file=sys.stderr)
    return code


class _Failed(Exception):
    """Training began, and what it needs is gone."""


@contextlib.contextmanager
def _failing(out):
    """Around training, where a gone image is no bad input any more, nor is what happens to the results folder."""
    try:
        yield
    except DataError as error:
        raise _Failed(str(error)) from error
    except MemoryError as error:
        raise _Failed(f"out of memory ({error}); --dry-run says what a run needs") from error
    except OSError as error:
        is_of_results = os.path.abspath(str(error.filename or "")).startswith(os.path.abspath(out) + os.sep)
        if error.errno not in _FULL and not is_of_results:
            raise
        raise _Failed(f"{error.filename}: {error.strerror}" if error.filename else error.strerror) from error


def _parse(argv):
    parser = Parser(description="Trains an image classifier in mixed precision.", allow_abbrev=False)
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="YAML file, or one that comes with mixprec, such as resnet50/90ep.yaml; see docs/config.md",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="overrides a key of the config, for example optimizer.lr=0.4; may be repeated",
    )
    parser.add_argument("--out", metavar="DIR", help="results folder; default results/<config>/<date-time>")
    parser.add_argument(
        "--resume",
        metavar="auto|FILE",
        help="go on from a snapshot; auto takes the newest in the results folder and starts afresh if there is none",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check and build everything, time a few steps, print what is needed, and stop; writes nothing but caches",
    )
    arguments = parser.parse_args(argv)
    arguments.config = config_path(arguments.config)
    return arguments


def _run(arguments, networks):
    config = configs.load(arguments.config, arguments.set, choices={"model.arch": sorted(networks)})
    with _placed(arguments):
        network = find_network(config.model, networks)
    problem = tensorboard.missing() if config.log.tensorboard else None
    if problem:
        raise configs.ConfigError(arguments.config, f"'log.tensorboard' {problem}")
    device, reason = _device(arguments.config, config)
    out = output.choose(arguments.out, arguments.resume, arguments.config)
    output.check_writable(out)
    with contextlib.ExitStack() as lock:
        is_new = not os.path.isdir(out)
        if not is_new and not arguments.dry_run:  # which writes nothing
            lock.enter_context(locked(out))
        snapshot = output.snapshot_to_resume(out, arguments.resume)
        changes = [] if snapshot is None else snapshot_settings.compare(snapshot, config)
        with _placed(arguments):  # before the images are scanned, which may take minutes
            needs.check_size(config, network, device)
            model, report = build_model(config, network, device)
        train, val = images.open_sources(config)
        if arguments.resume is not None:
            images.check_records(out, train)
        trainer = build_trainer(config, model, train, val, device, out)
        if snapshot is not None:
            snapshots.load(snapshot, trainer)
            snapshots.check_newest(snapshot, trainer.updater.iteration, out)
            snapshots.check_length(snapshot, trainer.updater.epoch_detail, config.training.epochs)
        first, history = trainer.updater.iteration, trainer.get_extension(snapshot_settings.Settings.name).changes
        history += [f"since iteration {first}: {change}" for change in changes]
        resolved = configs.dump(
            config,
            source=arguments.config,
            overrides=arguments.set,
            version=mixprec.__version__,
            changes=history,
        )
        lines = [f"device: {device} ({reason})", *images.describe(config, train, val, trainer.updater.device)]
        lines.append(f"optimizer: {config.optimizer.name}, learning rate {described_rate(config)}")
        if config.capture.mode != "off":
            lines.append(f"capture: {_captures(device)}")
        if snapshot is not None:
            lines += [f"resuming from {one_line(snapshot)}", *(f"changed: {change}" for change in changes)]
        if arguments.dry_run:
            estimate = needs.dry_run(config, trainer, report, train, val, out)
            print("\n".join([*lines, "", resolved, str(report), "", estimate, ""]))
            print(f"dry run: all is well; without --dry-run the results would go to {one_line(out)}")
            return
        needs.check_disk(config, trainer, len(train), out)
        if is_new:  # or was, when this run began
            lock.enter_context(output.created(out))
            if output.snapshot_to_resume(out, arguments.resume) != snapshot:
                raise output.OutputError(f"{out}: another run has used it meanwhile; start again")
        print("\n".join([*lines, f"results: {one_line(out)}"]), flush=True)
        with _failing(out):
            output.prepare(out, resumed=snapshot is not None)
            write = functools.partial(output.write, resumed=snapshot is not None)
            write(os.path.join(out, output.CONFIG), resolved)
            write(os.path.join(out, "environment.txt"), surroundings.report())
            write(os.path.join(out, "conversion.txt"), f"{report}\n")
            images.write_records(out, train, val)
            _train(config, trainer, first, out)


def _train(config, trainer, first, out):
    try:
        trainer.run(show_loop_exception_msg=False)
    except Stopped as stopped:
        if stopped.failure is not None:
            raise stopped.failure from None
        where = f"{'in the evaluation' if stopped.in_evaluation else 'at the end'} of iteration"
        iteration, newest = trainer.updater.iteration, one_line(snapshots.newest(out))
        print(f"stopped by SIGTERM {where} {iteration}; --resume auto goes on from {newest}")
        return
    _finish(config, trainer, first, out)


def _finish(config, trainer, first, out):
    """Writes and says what there is to say at the end of training; ``first`` is where this process began."""
    if config.capture.mode != "off":
        report, steps = os.path.join(out, "capture.txt"), trainer.updater.iteration - first
        files.write_text(report, _captured(config, trainer))
        replays = f"{trainer.updater.step.replays} of {steps} steps were launches of a graph"
        print(f"capture: {replays}; more in {one_line(report)}")
    weights = os.path.join(out, "model.npz")
    with averaged_weights(trainer):
        _save_weights(weights, trainer.updater.get_optimizer("main"))
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


def _device(path, config):
    try:
        device, reason = environment.resolve_device(config.training.device)
    except ValueError as error:
        raise configs.ConfigError(path, f"training.{error}") from error
    if config.capture.mode == "required" and device == "@numpy":
        raise configs.ConfigError(path, f"'capture.mode' is 'required', which needs a GPU; the device is {reason}")
    return device, reason


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
