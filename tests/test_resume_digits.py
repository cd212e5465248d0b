"""Promise 5 on the digits run: killed with SIGKILL at a random step and resumed, it is the run that was not killed."""

import io
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

pytest.importorskip("nvidia.dali", reason='needs NVIDIA DALI: pip install -e ".[dali]"')
pytest.importorskip("sklearn", reason='needs scikit-learn: pip install -e ".[digits]"')

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIMES = ("elapsed_time", "images/s")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    make = [sys.executable, ROOT / "scripts" / "make_digits.py", "--out", "data/digits"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    return folder


def _start(folder, out, *arguments):
    settings = ["training.epochs=2", "training.device=cpu", "snapshot.every=10 iterations", "log.every=20 iterations"]
    options = [word for setting in settings for word in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "train_imagenet.py", "--config", ROOT / "configs" / "digits.yaml"]
        + ["--out", out, *options, *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def _log(text):
    """The log without its times."""
    return [{key: value for key, value in entry.items() if key not in TIMES} for entry in json.loads(text)]


def _members(path):
    """The files in a zip, byte for byte; the log that is among them, without its times."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name in list(members):
        if name.endswith("_log.npy"):
            members[name] = _log(str(np.load(io.BytesIO(members[name]))))
        elif "elapsed_time" in name:
            del members[name]
    return members


def test_kill_9_at_a_random_step(digits):
    """The final snapshot and the log are those of an uninterrupted run, byte for byte, times aside."""
    start = time.monotonic()
    whole = _finish(_start(digits, "whole"))
    seconds = time.monotonic() - start
    last = max((digits / "whole").glob("snapshot_iter_*.npz"), key=lambda path: int(path.stem.rpartition("_")[2]))

    process = _start(digits, "killed")
    while not list((digits / "killed").glob("snapshot_iter_*.npz")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.3 * seconds))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (digits / "killed" / last.name).exists(), "killed too late to test anything"
    resumed = _finish(_start(digits, "killed", "--resume", "auto"))

    assert "resuming from killed/snapshot_iter_" in resumed
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]
    assert _log((digits / "killed" / "log").read_text()) == _log((digits / "whole" / "log").read_text())
    for name in (last.name, "model.npz"):
        expected, found = _members(digits / "whole" / name), _members(digits / "killed" / name)
        assert found.keys() == expected.keys()
        assert [member for member in expected if found[member] != expected[member]] == []
