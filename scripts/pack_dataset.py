#!/usr/bin/env python
"""Packs images into TFRecord or WebDataset shards, or verifies what was packed: the command ``mixprec pack``.

python scripts/pack_dataset.py --source PATH --out DIR --format tfrecord|webdataset [--help for more]
python scripts/pack_dataset.py --verify DIR
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("pack")
