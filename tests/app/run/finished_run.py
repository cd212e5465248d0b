"""What a run of scripts/train_imagenet.py has left, without its times."""

import io
import json
import zipfile

import numpy as np

_TIMES = ("elapsed_time", "images/s")


def log(folder):
    """The entries of the log."""
    return _without_times(map(json.loads, (folder / "log.jsonl").read_text().splitlines()))


def members(path):
    """The arrays in a snapshot or model file by name, byte for byte; the log that is among them as its entries.

    Not the settings, which are those of the command.
    """
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if "elapsed_time" not in name and "/settings/" not in name]
        found = {name: archive.read(name) for name in names}
    return {
        name: _without_times(json.loads(str(np.load(io.BytesIO(content))))) if name.endswith("_log.npy") else content
        for name, content in found.items()
    }


def _without_times(entries):
    return [{key: value for key, value in entry.items() if key not in _TIMES} for entry in entries]
