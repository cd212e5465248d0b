"""Trains a network of models/ on ImageNet, or on any folders of images.

python scripts/train_imagenet.py --config configs/resnet50/90ep.yaml [--set KEY=VALUE ...] [--out DIR]
                                 [--resume auto|FILE] [--dry-run]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec import interruption, variables

if __name__ == "__main__":
    interruption.end_quietly()  # before the seconds that the imports below take
    variables.check_for_command()

from mixprec.training import command
from models import MODELS

if __name__ == "__main__":
    sys.exit(command.main(sys.argv[1:], MODELS))
