"""Prints what mixprec.convert does to a model: the command ``mixprec convert-report``.

python scripts/convert_report.py MODEL [--input SHAPE[:DTYPE] ...] [--compute float16] [--layout nhwc] [--no-fuse]
                                 [--strict] [--json PATH]

MODEL is module:callable or module:callable(arguments): models.resnet:resnet50, 'models.resnet:resnet50(classes=10)'.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("convert-report")
