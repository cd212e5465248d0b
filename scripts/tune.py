"""Searches for the fastest engine of cuDNN for every operation of a training step: the command ``mixprec tune``.

python scripts/tune.py [--config nhwc_fused_batched.yaml] [--arch resnet50] [--batch 256] [--size 224]
                       [--seconds-per-operation 40] [--set SECTION.KEY=VALUE ...]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("tune")
