"""Searches for the fastest engines of cuDNN for a network: the command ``mixprec tune``.

python scripts/tune.py [--config resnet50/nhwc_fused_batched.yaml] [--arch NAME] [--batch N] [--size PIXELS]
                       [--seconds-per-operation 40] [--set KEY=VALUE ...]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("tune")
