"""Writes handwritten digits as JPEG files in ImageNet's folder layout: the command ``mixprec digits``.

python scripts/make_digits.py [--out data/digits] [--size 40] [--force]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("digits")
