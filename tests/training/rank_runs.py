"""Runs of the training command under ``mpiexec``, for tests."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
import yaml

from tests import ROOT
from tests.training import small_images

_MPIEXEC = pathlib.Path(sys.executable).with_name("mpiexec")


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
    if importlib.util.find_spec("mpi4py") is None or not _MPIEXEC.exists():
        pytest.skip("mpi4py or mpiexec is not installed: extra mpi")
    options = [word for setting in settings for word in ("--set", setting)]
    module, *first = program
    program = [sys.executable, "-m", f"tests.training.{module}", *first, fault, "--config", "small.yaml", "--out", out]
    launcher = [] if ranks == 1 else [_MPIEXEC, "-n", str(ranks)]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    cache = {"XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        [*launcher, *program, *options, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=limit,
        env={**os.environ, **one_thread, **cache, "PYTHONUNBUFFERED": "", "PYTHONPATH": path},
    )
