"""The training command: from its arguments to a results folder."""

import os
import sys

from chainer import serializers

import mixprec
from mixprec import config as configs
from mixprec import environment, files
from mixprec.backends.cudnn.errors import CaptureError
from mixprec.command_line import Parser
from mixprec.data.folders import DataError, check_same_classes, scan_folders
from mixprec.loss_scale import LossScaleExhausted
from mixprec.training import output, snapshots
from mixprec.training.evaluation import Evaluator
from mixprec.training.trainer import build_model, build_trainer

_BAD_INPUT = (configs.ConfigError, DataError, output.OutputError, snapshots.SnapshotError)


def main(argv, networks):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: the architectures ``model.arch`` may name: a dict from name to a callable that takes the number of
            classes and returns a Chainer link.

    Returns:
        int: exit code: 0; 1 if training diverged, or a step cannot be captured and that is required; 2 for bad input
        (one line on standard error, nothing left behind); 130 after Ctrl-C.
    """
    arguments = _parse(argv)
    try:
        _run(arguments, networks)
    except _BAD_INPUT as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (LossScaleExhausted, CaptureError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; --resume auto goes on from the last snapshot", file=sys.stderr)
        return 130
    return 0


def _parse(argv):
    parser = Parser(description="Trains an image classifier in mixed precision.", allow_abbrev=False)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file, see docs/config.md")
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
    parser.add_argument("--dry-run", action="store_true", help="check and build everything, print it, and stop")
    return parser.parse_args(argv)


def _run(arguments, networks):
    config = configs.load(arguments.config, arguments.set, choices={"model.arch": sorted(networks)})
    device, reason = _device(arguments.config, config)
    out = output.choose(arguments.out, arguments.resume, arguments.config)
    output.check(out, arguments.resume)
    train, val = _images(config)
    model, report = build_model(config, networks[config.model.arch], device)
    trainer = build_trainer(config, model, train, val, device, out)
    snapshot = output.snapshot_to_resume(out, arguments.resume)
    if snapshot is not None:
        snapshots.load(snapshot, trainer)

    print(f"device: {device} ({reason})")
    print(f"data: {len(train)} training and {len(val)} validation images in {len(train.classes)} classes")
    if config.capture.mode != "off":
        print(f"capture: {_captures(config.capture, device)}")
    resolved = configs.dump(config, source=arguments.config, overrides=arguments.set, version=mixprec.__version__)
    if arguments.dry_run:
        print(f"\n{resolved}\n{report}\n")
        print(f"dry run: all is well; without --dry-run the results would go to {out}")
        return
    print(f"results: {out}")
    if snapshot is not None:
        print(f"resuming from {snapshot}")
    output.prepare(out)
    files.write_text(os.path.join(out, "config.yaml"), resolved)
    files.write_text(os.path.join(out, "environment.txt"), f"{environment.report()}\n")
    files.write_text(os.path.join(out, "conversion.txt"), f"{report}\n")
    first = trainer.updater.iteration
    trainer.run(show_loop_exception_msg=False)

    if config.capture.mode != "off":
        report, steps = os.path.join(out, "capture.txt"), trainer.updater.iteration - first
        files.write_text(report, _captured(trainer))
        print(f"capture: {trainer.updater.step.replays} of {steps} steps were launches of a graph; more in {report}")
    weights = os.path.join(out, "model.npz")
    _save_weights(weights, trainer.updater.get_optimizer("main"))
    print(f"results, log and plots: {out}; weights in FP32 for plain Chainer: {weights}")
    accuracies = [
        entry["validation/main/accuracy"]
        for entry in trainer.get_extension("LogReport").log
        if "validation/main/accuracy" in entry
    ]
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


def _captured(trainer):
    text = f"training\n{trainer.updater.step.report()}\n"
    evaluate = trainer.get_extension(Evaluator.default_name).eval_func
    return text if evaluate is None else f"{text}\nevaluation\n{evaluate.report()}\n"


def _images(config):
    train = scan_folders(config.data.train)
    val = scan_folders(config.data.val)
    check_same_classes(train, val)
    if len(train.classes) != config.model.classes:
        raise DataError(
            f"{config.data.train}: {len(train.classes)} classes, but model.classes is {config.model.classes}"
        )
    if len(train) < config.training.batch_size:
        raise DataError(
            f"{config.data.train}: {len(train)} images, but training.batch_size is {config.training.batch_size}"
        )
    return train, val


def _save_weights(path, optimizer):
    """Saves the network under the names ``load_npz`` of the plain network looks for; its masters are saved, in FP32."""
    with files.replacing(path) as temporary:
        serializers.save_npz(temporary, optimizer.target.predictor, compression=False)
