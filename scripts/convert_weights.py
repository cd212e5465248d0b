"""Converts weights from Chainer to PyTorch, or back: the command ``mixprec weights``.

python scripts/convert_weights.py IN OUT [--arch resnet50]

One of the files is .npz, Chainer's; the other one is .safetensors, .pt or .pth, PyTorch's.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("weights")
