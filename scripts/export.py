"""Writes the network of a run as ONNX files and checks them on its validation images: the command ``mixprec export``.

python scripts/export.py --run results/RUN --out DIR [--weights FILE] [--fp16] [--int8] [--for cpu|tensorrt]
                         [--images 512] [--half-ends] [--preprocess] [--val-images N] [--set KEY=VALUE ...]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("export")
