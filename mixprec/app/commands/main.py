"""The command ``mixprec``: ``mixprec train``, ``mixprec export`` and the others, each a module of this package.

Each module has ``main(argv)``, which takes the arguments without the names of the program and of the command, and
returns the exit code. Modules are imported when they are called, so that ``mixprec --help`` takes no seconds.
"""

import importlib
import os
import sys
from pathlib import Path

from mixprec.app.commands import command_process
from mixprec.base import VERSION, interruption, standard_streams, working_folder
from mixprec.base.messages import hint, nearest, one_line

# In the order of the help: name of the command and of its module, and what it does.
COMMANDS = {
    "train": "train an image classifier from a YAML config",
    "evaluate": "measure a trained network on validation images",
    "predict": "classify images by a trained network or an ONNX file",
    "export": "write a trained network as ONNX files, and check them",
    "weights": "convert weights to PyTorch's names and files, and back",
    "convert-report": "show what mixprec.convert does to a model",
    "pack": "pack images into TFRecord or WebDataset shards",
    "digits": "write the small set of handwritten digits as image files",
    "monitor": "show runs in a browser",
    "tune": "search for the fastest engines of cuDNN for a network",
    "info": "show versions, what this machine offers, and what is missing",
}
_TRAINS = "train"  # in several processes if a launcher of MPI has started several
_REPORTS = "info"  # also wrong values of environment variables, which end other commands
_PACKAGE, _CHECKOUT = "mixprec", Path(__file__).resolve().parents[3]


def main(argv):
    """Runs a command.

    Args:
        argv: command-line arguments, without the program's name.

    Returns:
        int: exit code of the command; 2 with one line on standard error if there is no such command, or a package that
        it needs is not installed; 130 after Ctrl-C.
    """
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"mixprec {VERSION}")
        return 0
    if name not in COMMANDS:
        what = "unrecognized argument" if name.startswith("-") else "no such command"
        meant = hint(nearest(name, [*COMMANDS, "--help", "--version"])) or f"; allowed: {', '.join(COMMANDS)}"
        return _refused(f"{one_line(name)!r}: {what}{meant} (see mixprec --help)")
    try:
        command = importlib.import_module(f"mixprec.app.commands.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == _PACKAGE:
            raise
        return _refused(f"{error.name} is not installed for {sys.executable}: {_remedy()}")
    if name == _TRAINS:  # it ends other ranks, too, after Ctrl-C
        return command.main(argv[1:])
    return interruption.run(lambda: command.main(argv[1:]))


def _refused(message):  # command_line imports too much before Ctrl-C is handled
    print(f"error: {message}", file=sys.stderr)
    return 2


def _remedy():
    """Returns what to do where a package is not installed, which pip would have installed with mixprec."""
    if not (_CHECKOUT / "Makefile").is_file():
        return "install mixprec with pip, which brings it"
    python = _CHECKOUT / ".venv" / "bin" / "python"
    if python.exists() and not os.path.samefile(sys.prefix, _CHECKOUT / ".venv"):
        return f"run it with {working_folder.shown(python)}"
    return f"'make install' in {_CHECKOUT} makes an environment; then run it with .venv/bin/python"


def _help():
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        f"usage: mixprec COMMAND [ARGUMENT ...]\n\nMixed-precision training for Chainer, version {VERSION}.\n\n{rows}\n"
        "\nmixprec COMMAND --help shows its arguments, mixprec --version the version."
    )


def console(*before):
    """Runs the command as the process that it is, and ends it: the program ``mixprec``, and the files in ``scripts/``.

    Args:
        *before: arguments in front of the process's own, such as the name of a command.
    """
    argv = [*before, *sys.argv[1:]]
    command_process.begin(is_rank=argv[:1] == [_TRAINS], checks_variables=argv[:1] != [_REPORTS])
    sys.exit(standard_streams.run(lambda: main(argv)))
