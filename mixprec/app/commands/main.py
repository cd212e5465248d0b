"""The command ``mixprec``: ``mixprec train``, ``mixprec export`` and the others, each a module of this package.

Each module has ``main(argv)``, which takes the arguments without the names of the program and of the command, and
returns the exit code. Modules are imported when they are called, so that ``mixprec --help`` takes no seconds.
"""

import importlib
import os
import sys

from mixprec.app.commands import command_process
from mixprec.base import VERSION, standard_streams
from mixprec.base.messages import hint, nearest

# In the order of the help: name of the command and of its module, and what it does.
COMMANDS = {
    "train": "train an image classifier, as a YAML file says",
    "evaluate": "measure a trained network on validation images",
    "predict": "say what is on images, by a trained network or an ONNX file",
    "export": "write a trained network as ONNX files, checked on validation images",
    "weights": "convert weights to PyTorch's names and files, and back",
    "convert-report": "show what mixprec.convert does to a model",
    "pack": "pack images into TFRecord or WebDataset shards",
    "digits": "write the small set of handwritten digits as image files",
    "monitor": "show runs in a browser",
    "tune": "search for the fastest engines of cuDNN for a network",
    "info": "show versions, what this machine offers, and what is missing",
}
_TRAINS = "train"  # in several processes if a launcher of MPI has started several


def main(argv):
    """Runs a command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code of the command; 2 with one line on standard error if there is no such command.
    """
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"mixprec {VERSION}")
        return 0
    if name not in COMMANDS:
        allowed = f"mixprec {name!r}: no such command; allowed: {', '.join(COMMANDS)}"
        print(f"error: {allowed}{hint(nearest(name, COMMANDS))} (see --help)", file=sys.stderr)
        return 2
    return importlib.import_module(f"mixprec.app.commands.{name.replace('-', '_')}").main(argv[1:])


def _help():
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: mixprec COMMAND [ARGUMENT ...]",
            "",
            f"Mixed-precision training for Chainer, version {VERSION}.",
            "",
            *(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()),
            "",
            "mixprec COMMAND --help shows its arguments; mixprec --version the version.",
        ]
    )


def console(*before):
    """Runs the command as the process that it is, and ends it: the program ``mixprec``, and the files in ``scripts/``.

    Args:
        *before: arguments before those of the process, such as the name of a command.
    """
    argv = [*before, *sys.argv[1:]]
    is_rank = argv[:1] == [_TRAINS]
    command_process.begin(is_rank=is_rank)
    if "" not in sys.path and os.curdir not in sys.path:
        sys.path.insert(0, "")  # networks, losses and extensions of the user's
    sys.exit(standard_streams.run(lambda: main(argv)) if is_rank else command_process.run(lambda: main(argv)))
