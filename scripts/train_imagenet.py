"""Trains a network of models/ on ImageNet, or on any folders of images.

python scripts/train_imagenet.py --config configs/resnet50/90ep.yaml [--set KEY=VALUE ...] [--out DIR]
                                 [--resume auto|FILE] [--dry-run]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process
from mixprec.base import standard_streams

if __name__ == "__main__":
    command_process.begin(is_rank=True)  # before the seconds that the imports below take

from mixprec.app.commands import train as command
from models import MODELS

if __name__ == "__main__":
    sys.exit(standard_streams.run(lambda: command.main(sys.argv[1:], MODELS)))
