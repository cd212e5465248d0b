"""Says what is on images, by an ONNX file of scripts/export.py: the five best classes of each, and how long it took.

python scripts/predict.py MODEL.onnx IMAGE ...
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands import predict


def main(argv=None):
    """Runs the command with arguments, ``None`` for those of the process; returns its exit code."""
    return predict.main(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(command_process.run(main))
