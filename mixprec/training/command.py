"""The training command: from its arguments to a results folder."""

import errno
import os
import sys

from chainer import serializers

import mixprec
from mixprec import config as configs
from mixprec import environment, files
from mixprec.backends.cudnn.errors import CaptureError
from mixprec.command_line import Parser
from mixprec.data.errors import DataError
from mixprec.loss_scale import LossScaleExhausted
from mixprec.recipes import config_path
from mixprec.training import dry_run, images, output, snapshots, surroundings, tensorboard
from mixprec.training.averaging import averaged_weights
from mixprec.training.evaluation import Evaluator
from mixprec.training.model import build_model
from mixprec.training.networks import find as find_network
from mixprec.training.schedule import described_rate
from mixprec.training.stopping import Stopped
from mixprec.training.trainer import build_trainer

_BAD_INPUT = (configs.ConfigError, DataError, output.OutputError, snapshots.SnapshotError, dry_run.DoesNotFit)
_FAILED = (LossScaleExhausted, CaptureError, snapshots.WriteError)
_FULL = (errno.ENOSPC, errno.EDQUOT)  # the log and plots are written, too


def main(argv, networks):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: the architectures ``model.arch`` may name, beside import paths: a dict from name to a callable that
            takes the number of classes and returns a Chainer link.

    Returns:
        int: exit code: 0, also after SIGTERM in training, when there is a snapshot to go on from; 1 if training
        diverged, a step cannot be captured and that is required, or a snapshot cannot be written; 2 for bad input (one
        line on standard error, nothing left behind); 130 after Ctrl-C. SIGTERM before the first iteration ends the
        process as it does any other.
    """
    arguments = _parse(argv)
    try:
        _run(arguments, networks)
    except _BAD_INPUT as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except _FAILED as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in _FULL:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror}; --resume auto goes on from the last snapshot", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; --resume auto goes on from the last snapshot, if there is one", file=sys.stderr)
        return 130
    return 0


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
    network = find_network(config.model, networks)
    problem = tensorboard.missing() if config.log.tensorboard else None
    if problem:
        raise configs.ConfigError(arguments.config, f"'log.tensorboard' {problem}")
    device, reason = _device(arguments.config, config)
    out = output.choose(arguments.out, arguments.resume, arguments.config)
    output.check(out, arguments.resume)
    model, report = build_model(config, network, device)  # before the images are scanned, which may take minutes
    train, val = images.open_sources(config)
    if arguments.resume is not None:
        images.check_records(out, train)
    trainer = build_trainer(config, model, train, val, device, out)
    snapshot = output.snapshot_to_resume(out, arguments.resume)
    if snapshot is not None:
        snapshots.load(snapshot, trainer)
        snapshots.check_newest(snapshot, trainer.updater.iteration, out)
        snapshots.check_length(snapshot, trainer.updater.epoch_detail, config.training.epochs)

    resolved = configs.dump(config, source=arguments.config, overrides=arguments.set, version=mixprec.__version__)
    lines = [f"device: {device} ({reason})"]
    lines += images.describe(config, train, val, trainer.updater.device)
    lines.append(f"optimizer: {config.optimizer.name}, learning rate {described_rate(config)}")
    if config.capture.mode != "off":
        lines.append(f"capture: {_captures(config.capture, device)}")
    if arguments.dry_run:
        estimate = dry_run.estimate(config, trainer, report, len(train), out)
        print("\n".join([*lines, "", resolved, str(report), "", estimate, ""]))
        print(f"dry run: all is well; without --dry-run the results would go to {out}")
        return
    print("\n".join(lines))
    print(f"results: {out}")
    if snapshot is not None:
        print(f"resuming from {snapshot}")
    output.prepare(out, resumed=snapshot is not None)
    files.write_text(os.path.join(out, "config.yaml"), resolved)
    files.write_text(os.path.join(out, "environment.txt"), surroundings.report())
    files.write_text(os.path.join(out, "conversion.txt"), f"{report}\n")
    images.write_records(out, train, val)
    sys.stdout.flush()
    first = trainer.updater.iteration
    try:
        trainer.run(show_loop_exception_msg=False)
    except Stopped as stopped:
        if stopped.failure is not None:
            raise stopped.failure from None
        where = f"{'in the evaluation' if stopped.in_evaluation else 'at the end'} of iteration"
        iteration = trainer.updater.iteration
        print(f"stopped by SIGTERM {where} {iteration}; --resume auto goes on from {snapshots.newest(out)}")
        return
    _finish(config, trainer, first, out)


def _finish(config, trainer, first, out):
    """Writes and says what there is to say at the end of training; ``first`` is where this process began."""
    if config.capture.mode != "off":
        report, steps = os.path.join(out, "capture.txt"), trainer.updater.iteration - first
        files.write_text(report, _captured(config, trainer))
        print(f"capture: {trainer.updater.step.replays} of {steps} steps were launches of a graph; more in {report}")
    weights = os.path.join(out, "model.npz")
    with averaged_weights(trainer):
        _save_weights(weights, trainer.updater.get_optimizer("main"))
    print(f"results, log and plots: {out}; weights in FP32 for plain Chainer: {weights}")
    accuracies = [
        entry["validation/main/accuracy"]
        for entry in trainer.get_extension("LogReport").log
        if "validation/main/accuracy" in entry
    ]
    if accuracies:
        print(f"validation accuracy {accuracies[-1]:.4f}")


def _device(path, config):
    try:
        device, reason = environment.resolve_device(config.training.device)
    except ValueError as error:
        raise configs.ConfigError(path, f"training.{error}") from error
    if config.capture.mode == "required" and device == "@numpy":
        raise configs.ConfigError(path, f"'capture.mode' is 'required', which needs a GPU; the device is {reason}")
    return device, reason


def _captures(settings, device):
    if device == "@numpy":
        return "none, there is no graph on a CPU: steps are eager"
    return f"after {settings.warmup} eager steps each is one CUDA graph; if that cannot be, a warning says why"


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
