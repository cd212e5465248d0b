"""Prints what mixprec.convert does to a model: any that can be imported, also from the current directory.

python scripts/convert_report.py MODEL [--input SHAPE[:DTYPE] ...] [--compute float16] [--layout nhwc] [--no-fuse]
                                 [--strict] [--json PATH]

MODEL is module:callable or module:callable(arguments): models.resnet:resnet50, 'models.resnet:resnet50(classes=10)'.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, os.getcwd())

from mixprec.rewrite import command

if __name__ == "__main__":
    sys.exit(command.main(sys.argv[1:]))
