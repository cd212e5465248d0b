"""Trains a network of models/ on ImageNet, or on any folders of images: the command ``mixprec train``.

python scripts/train_imagenet.py --config configs/resnet50/90ep.yaml [--set KEY=VALUE ...] [--out DIR]
                                 [--resume auto|FILE] [--dry-run]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("train")
