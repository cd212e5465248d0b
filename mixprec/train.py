"""Trains a network that comes with mixprec on ImageNet, or on any folders of images.

python -m mixprec.train --config resnet50/90ep.yaml [--set KEY=VALUE ...] [--out DIR] [--resume auto|FILE] [--dry-run]

``--config`` is a file, or one of the configs that come with mixprec. In a checkout ``scripts/train_imagenet.py`` is the
same command.
"""

import sys

from mixprec.app.commands import command_process
from mixprec.base import standard_streams

if __name__ == "__main__":
    command_process.begin(is_rank=True)  # before the seconds that the imports below take

from mixprec.app.commands import train as command
from mixprec.recipes.models import MODELS


def main(argv):
    """Runs the command and returns its exit code, see :func:`mixprec.app.commands.train.main`."""
    return command.main(argv, MODELS)


if __name__ == "__main__":
    sys.exit(standard_streams.run(lambda: main(sys.argv[1:])))
