"""The training command: its arguments, exit codes and error messages."""

import sys
import traceback

import chainer
import numpy as np

from mixprec.app.commands.command_line import one_line, parser_of
from mixprec.app.run.training_run import Failed, carry_out
from mixprec.backends.capture_error import CaptureError
from mixprec.base import VERSION, importing, interruption, standard_streams
from mixprec.base.installation import page
from mixprec.base.messages import OneLineError
from mixprec.distributed import processes
from mixprec.precision.loss_scale import LossScaleExhausted
from mixprec.recipes import config_path
from mixprec.recipes.models import MODELS
from mixprec.training import snapshots
from mixprec.training.divergence import Diverged

_FAILED = (LossScaleExhausted, Diverged, CaptureError, snapshots.WriteError)
_GO_ON = "--resume auto goes on from the last snapshot"


@standard_streams.guarded()
def main(argv, networks=MODELS):
    """Runs the command.

    Args:
        argv: command-line arguments, without the program's name.
        networks: the architectures ``model.arch`` may name, beside import paths: a dict from name to a callable that
            takes the number of classes and returns a Chainer link.

    Returns:
        int: exit code. 0: done, or stopped by SIGTERM in training, with a snapshot to go on from. 1: it began and
        failed: training diverged, a step cannot be captured and that is required, an image or a process of the loader
        is gone, memory or disk are full; one line on standard error names the reason. 2: bad input, one line on
        standard error, nothing left behind. 130: Ctrl-C. SIGTERM before the first iteration ends the process as usual.
        An unexpected error is a traceback, and 1.
    """
    try:
        ranks = processes.find()
    except processes.Refused as refused:
        return _refused(refused)
    try:
        return _main(argv, networks, ranks)
    except BaseException as error:  # whatever it is, other ranks wait for this one
        if ranks.size == 1:
            raise
        return ranks.fail(*_way_out(error))
    finally:
        ranks.leave()


def _way_out(error):
    """Returns message and exit code of a rank that ends by an exception other than a failure of the run."""
    if isinstance(error, Exception):
        return traceback.format_exc(), 1
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    # Exit code 0 of one rank is a failure of the run, too: the others have lost the rank.
    return f"ended by {importing.described(error)}; {_GO_ON}, if there is one", code % 256 or 1


def _main(argv, networks, ranks):
    try:
        versions = {"mixprec": VERSION, "chainer": chainer.__version__, "numpy": np.__version__}
        ranks.compare({f"the version of {name}": version for name, version in versions.items()})
        arguments = _parse(argv, ranks)
        if arguments is None:
            return 0
        with interruption.raised_once():
            carry_out(arguments, networks, ranks)
            ranks.gather(None)  # rank 0 has written all: what goes wrong when a process ends, ends the others too
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
    parser = parser_of("train", "Trains an image classifier in mixed precision.")
    help = f"YAML file, or one that comes with mixprec, such as resnet50/90ep.yaml; see {page('config.md')}"
    parser.add_path("--config", "FILE", help, required=True)
    parser.add_repeated("--set", "SECTION.KEY=VALUE", "overrides a key of the config, for example optimizer.lr=0.4")
    parser.add_argument("--out", metavar="DIR", help="results folder; default results/<config>/<date-time>")
    help = "continue from a snapshot; auto takes the newest in the results folder and starts afresh if there is none"
    parser.add_argument("--resume", metavar="auto|FILE", help=help)
    help = "check and build everything, time a few steps, print what is needed, and stop; writes only caches"
    parser.add_argument("--dry-run", action="store_true", help=help)
    arguments = ranks.quietly(parser.parse_args, argv)
    if arguments is not None:
        arguments.config = config_path(arguments.config)
    return arguments
