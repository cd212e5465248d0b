"""The training command: its arguments, its exit codes, and what it says when it fails."""

import sys
import traceback

import chainer
import numpy as np

import mixprec
from mixprec import interruption, standard_streams
from mixprec.backends.capture_error import CaptureError
from mixprec.command_line import Parser, one_line
from mixprec.loss_scale import LossScaleExhausted
from mixprec.messages import OneLineError
from mixprec.recipes import config_path
from mixprec.training import processes, snapshots
from mixprec.training.training_run import Failed, carry_out

_FAILED = (LossScaleExhausted, CaptureError, snapshots.WriteError)
_GO_ON = "--resume auto goes on from the last snapshot"


@standard_streams.guarded()
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
    try:
        ranks = processes.find()
    except processes.Refused as refused:
        return _refused(refused)
    try:
        return _main(argv, networks, ranks)
    except Exception:
        if ranks.size == 1:
            raise
        return ranks.fail(traceback.format_exc(), 1)
    finally:
        ranks.leave()


def _main(argv, networks, ranks):
    try:
        ranks.compare({f"the version of {each.__name__}": each.__version__ for each in (mixprec, chainer, np)})
        arguments = _parse(argv, ranks)
        with interruption.raised_once():
            carry_out(arguments, networks, ranks)
    except processes.Refused as refused:
        return _refused(refused)
    except (OneLineError, MemoryError) as error:
        return ranks.fail(f"error: {processes.refusal(error)}", 2)
    except _FAILED as error:
        return ranks.fail(f"error: {one_line(error)}", 1)
    except Failed as error:
        return ranks.fail(f"error: {one_line(f'{error}; {_GO_ON}')}", 1)
    except KeyboardInterrupt:
        return ranks.fail(f"interrupted; {_GO_ON}, if there is one", interruption.INTERRUPTED)
    return 0


def _refused(refused):
    if refused.line is not None:
        print(refused.line, file=sys.stderr)
    return 2


def _parse(argv, ranks):
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
    arguments = ranks.quietly(parser.parse_args, argv)
    arguments.config = config_path(arguments.config)
    return arguments
