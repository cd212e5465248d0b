"""Runs of the training command under ``mpiexec``, for tests."""

import sys

import yaml

from tests import mpi
from tests.app.run import small_images


def make_work(root):
    """Makes a folder with 22 training and 7 validation images, and a config for batches of 2."""
    small_images.make(root / "images")
    sections = {
        "model": {"arch": "small", "classes": 3},
        "precision": {"compute": "float32"},
        "loss_scale": {"growth_interval": 3, "init_scale": 2.0**10},
        "data": {"train": "images/train", "val": "images/val", "size": 8, "resize": 8, "threads": 1},
        "optimizer": {"lr": 0.02, "weight_decay": 0.001, "base_batch_size": 4},
        "training": {"batch_size": 2, "epochs": 3, "device": "cpu"},
        "snapshot": {"every": "5 iterations"},
        "log": {"every": "4 iterations"},
    }
    sections["data"]["loader"] = "pillow"
    (root / "small.yaml").write_text(yaml.safe_dump(sections))


def run(folder, ranks, out, *settings, fault="none", arguments=(), limit=120, program=("faulty_rank",)):
    """Runs the command; skips the test where MPI is missing.

    Args:
        folder: working directory.
        ranks: number of processes; 1 runs without ``mpiexec``.
        out: results folder.
        settings: of the config.
        fault: as for ``faulty_rank.py``.
        arguments: more arguments of the command.
        limit: seconds.
        program: module of this folder, and its first arguments.

    Returns:
        subprocess.CompletedProcess
    """
    options = [word for setting in settings for word in ("--set", setting)]
    module, *first = program
    program = [sys.executable, "-m", f"tests.app.run.{module}", *first, fault, "--config", "small.yaml", "--out", out]
    cache = {"XDG_CACHE_HOME": str(folder / "cache")}
    return mpi.launch(ranks, [*program, *options, *arguments], folder, limit, **cache)
