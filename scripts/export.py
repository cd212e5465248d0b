"""Writes the network of a run as ONNX files, in FP32, FP16 and INT8, and checks them on its validation images.

python scripts/export.py --run results/RUN --out DIR [--weights FILE] [--fp16] [--int8] [--for cpu|tensorrt]
                         [--images 512] [--half-ends] [--preprocess] [--val-images N] [--set KEY=VALUE ...]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands import export as export_command
from models import MODELS


def main(argv=None):
    """Runs the command with arguments, ``None`` for those of the process; returns its exit code."""
    sys.path.insert(0, "")  # a network of the user's
    return export_command.main(sys.argv[1:] if argv is None else argv, MODELS)


if __name__ == "__main__":
    sys.exit(command_process.run(main))
