"""Prints what mixprec.convert does to a model: any that can be imported, also from the current directory.

python scripts/convert_report.py MODEL [--input SHAPE[:DTYPE] ...] [--compute float16] [--layout nhwc] [--no-fuse]
                                 [--strict] [--json PATH]

MODEL is module:callable or module:callable(arguments): models.resnet:resnet50, 'models.resnet:resnet50(classes=10)'.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands import convert_report as convert_command


def main(argv=None):
    """Runs the command with arguments, ``None`` for those of the process; returns its exit code."""
    sys.path.insert(0, "")
    return convert_command.main(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(command_process.run(main))
