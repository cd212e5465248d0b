"""Converts weights from Chainer to PyTorch, or back: those of a ResNet of models/ have torchvision's names there.

python scripts/convert_weights.py IN OUT [--arch resnet50]

One of the files is .npz, Chainer's; the other one is .safetensors, .pt or .pth, PyTorch's.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands import weights as weights_command
from models import MODELS


def main(argv=None):
    """Runs the command with arguments, ``None`` for those of the process; returns its exit code."""
    return weights_command.main(sys.argv[1:] if argv is None else argv, MODELS)


if __name__ == "__main__":
    sys.exit(command_process.run(main))
