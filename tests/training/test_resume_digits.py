"""Promise 5 on the digits run: killed with SIGKILL at a random step and resumed, it is the run that was not killed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests import ROOT
from tests.training import finished_run

pytest.importorskip("nvidia.dali", reason='needs NVIDIA DALI: pip install -e ".[dali]"')
pytest.importorskip("sklearn", reason='needs scikit-learn: pip install -e ".[digits]"')


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    make = [sys.executable, ROOT / "scripts" / "make_digits.py", "--out", "data/digits"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    return folder


def _start(folder, out, *arguments):
    settings = ["training.epochs=2", "training.device=cpu", "data.size=16", "data.resize=16"]
    settings += ["snapshot.every=10 iterations", "log.every=45 iterations"]  # each entry draws six plots
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


def _newest_snapshot(folder):
    return max((int(path.stem.rpartition("_")[2]) for path in folder.glob("snapshot_iter_*.npz")), default=0)


def _killed(folder, choose):
    """Kills a run at a random step, and returns the number of its newest snapshot."""
    process = _start(folder, "killed")
    kill_at = choose.randrange(10, 110, 10)
    while _newest_snapshot(folder / "killed") < kill_at:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(choose.uniform(0, 0.5))  # some steps later, or in the middle of one, or of a snapshot
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return _newest_snapshot(folder / "killed")


@pytest.mark.long
def test_kill_9_at_a_random_step(digits):
    """The final snapshot and the log are those of an uninterrupted run, byte for byte, times aside."""
    whole = _finish(_start(digits, "whole"))
    last = digits / "whole" / "snapshot_iter_180.npz"
    assert last.exists()

    choose = random.Random(0 if "CI" in os.environ else None)
    for _ in range(5):
        if _killed(digits, choose) < 180:
            break
        shutil.rmtree(digits / "killed")  # too late: this process did not run while the training ended
    else:
        pytest.fail("the training ended five times before it was killed")
    resumed = _finish(_start(digits, "killed", "--resume", "auto"))

    assert "resuming from killed/snapshot_iter_" in resumed
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]
    assert finished_run.log(digits / "killed") == finished_run.log(digits / "whole")
    for name in (last.name, "model.npz"):
        expected, found = (finished_run.members(digits / run / name) for run in ("whole", "killed"))
        assert found.keys() == expected.keys()
        assert [member for member in expected if found[member] != expected[member]] == []
