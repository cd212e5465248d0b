"""Promise 5: a run with every ingredient of today's recipes at once, killed with SIGKILL at random moments and resumed."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from PIL import Image

from tests import ROOT
from tests.cases import first
from tests.training import finished_run

pytest.importorskip("nvidia.dali", reason='needs NVIDIA DALI: pip install -e ".[dali]"')

KILLS = 2  # of each loader; ten of each have been tried by hand
# 40 images: 4 epochs of 10 batches of 4, of 5 of 8, and of 10 of 4; two batches a step, 5 or 3 steps an epoch.
EVERYTHING = {
    "model": {"arch": "resnet8", "classes": 4, "zero_init_residual": True, "stochastic_depth": 0.3},
    "loss_scale": {"growth_interval": 3, "init_scale": 2.0**18},
    "data": {
        "train": "images",
        "val": "images",
        "size": 16,
        "val_size": 24,
        "resize": 24,
        "threads": 2,
        "augment": "rand",
        "augment_deviation": 1.5,
        "augment_probability": 0.5,
        "erase": 0.5,
        "repeats": 2,
        "last_batch": "drop",
    },
    "progressive": {"until": [4, 8], "sizes": [8, 12], "batch_sizes": [4, 8]},
    "optimizer": {
        "name": "LAMB",
        "lr": 0.02,
        "base_batch_size": 8,
        "weight_decay": 0.02,
        "clip_norm": 1.0,
        "rates": {"/*": 0.5, "/fc/*": 1},
        "freeze": ["/conv1/*"],
    },
    "schedule": {"by": "epoch", "warmup_epochs": 2, "warmup_start_lr": 0.001, "decay_from": "start", "end_lr": 1e-6},
    "training": {
        "batch_size": 4,
        "accumulation_steps": 2,
        "epochs": 14,
        "device": "cpu",
        "ema_decay": 0.9,
        "loss": "bce",
        "bce_threshold": 0.2,
        "mixup": 0.2,
        "cutmix": 1.0,
        "mix_probability": 0.9,
    },
    "snapshot": {"every": "2 iterations"},
    "log": {"every": "20 iterations"},
}


@pytest.fixture
def work(tmp_path):
    """A folder with images and a config."""
    numbers = np.random.RandomState(0)
    for index in range(40):
        folder = tmp_path / "images" / "abcd"[index % 4]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = numbers.randint(0, 90, (30, 30, 3)) + 40 * (index % 4)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index:02}.png")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(EVERYTHING))
    return tmp_path


def _start(work, out, *arguments):
    return subprocess.Popen(
        [sys.executable, ROOT / "scripts/train_imagenet.py", "--config", "c.yaml", "--out", out, *arguments],
        cwd=work,
        env={**os.environ, "XDG_CACHE_HOME": str(work / "cache")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def _newest(folder):
    return max((int(path.stem.rpartition("_")[2]) for path in folder.glob("snapshot_iter_*.npz")), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("loader", first(1, ["pillow", "dali"], 1))
def test_kill_9_at_random_moments_with_everything_on(work, loader):
    """Snapshots, weights and log are those of an uninterrupted run, byte for byte, times aside."""
    settings = ("--set", f"data.loader={loader}")
    _finish(_start(work, "whole", *settings))
    last = _newest(work / "whole")
    choose, kills = random.Random(0 if "CI" in os.environ else None), 0
    moments = sorted(choose.sample(range(last - 4), KILLS))
    for moment in moments:
        resume = ("--resume", "auto") if _newest(work / "killed") else ()
        process = _start(work, "killed", *settings, *resume)
        while _newest(work / "killed") < moment and process.poll() is None:
            time.sleep(0.005)
        time.sleep(choose.uniform(0, 0.1))  # in the middle of a step, or of a snapshot
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if not _newest(work / "killed"):
            for path in (work / "killed").glob("*"):
                path.unlink()
    assert kills >= KILLS - 1  # a busy machine may let one come to its end before it is killed
    if _newest(work / "killed") < last:
        _finish(_start(work, "killed", *settings, "--resume", "auto"))
    assert finished_run.log(work / "killed") == finished_run.log(work / "whole")
    for name in (f"snapshot_iter_{last}.npz", "model.npz"):
        expected, found = (finished_run.members(work / run / name) for run in ("whole", "killed"))
        assert found.keys() == expected.keys()
        assert [member for member in expected if found[member] != expected[member]] == []
