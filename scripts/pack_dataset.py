"""Packs images into TFRecord or WebDataset shards, or verifies what was packed: the command ``mixprec pack``.

python scripts/pack_dataset.py --source FOLDER --out DIR --format webdataset|tfrecord [--shard-mib 256] [--seed 0]
python scripts/pack_dataset.py --verify DIR
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("pack")
