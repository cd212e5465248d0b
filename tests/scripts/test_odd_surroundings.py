"""Commands where the working directory is gone, and where Python leaves out docstrings and asserts."""

import importlib
import os
import subprocess
import sys

import pytest

from mixprec.app.commands import train as command
from mixprec.data.data_error import DataError
from mixprec.data.loaders.pipeline import require_dali
from mixprec.training.plots import Plots
from models import MODELS
from tests import ROOT
from tests.app.run import finished_run, small_images
from tests.cases import first

CONFIG = """
model: {{arch: resnet8, classes: 3}}
data: {{train: {root}/train, val: {root}/val, size: 8, resize: 8, threads: 1, loader: pillow}}
optimizer: {{lr: 0.02}}
training: {{batch_size: 6, epochs: 1, device: cpu}}
"""
GONE = "a relative path, and the working directory is gone; give an absolute path, or change to another folder"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with images and a config."""
    root = tmp_path_factory.mktemp("work")
    small_images.make(root)
    (root / "c.yaml").write_text(CONFIG.format(root=root))
    return root


def script(work, name, *arguments, cwd=None, options=(), **environ):
    """Runs a script, without ``cwd`` in a folder that is removed before."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(work / "cache"), **environ}
    command = [sys.executable, *options, str(ROOT / "scripts" / f"{name}.py"), *map(str, arguments)]
    gone = work / "gone"
    if cwd is None:
        gone.mkdir()
        command = ["/bin/sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *command]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=200, check=False)


def one_line(done):
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def trained(work):
    """A run of the usual kind."""
    done = script(work, "train_imagenet", "--config", "c.yaml", "--out", "trained", cwd=work)
    assert (done.returncode, done.stderr) == (0, "")
    return work / "trained"


def test_a_training_in_a_removed_folder(work, tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time
    arguments = ["--config", str(work / "c.yaml"), "--out"]
    assert command.main([*arguments, "out"], MODELS) == 2
    assert capsys.readouterr().err == f"error: out: {GONE}\n"
    assert command.main([*arguments, str(tmp_path / "out")], MODELS) == 0
    assert "\nfolder   gone\n" in (tmp_path / "out" / "environment.txt").read_text()


@pytest.mark.slow
def test_the_script_in_a_removed_folder(work):
    out = work / "in-a-removed-one"
    done = script(work, "train_imagenet", "--config", work / "c.yaml", "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert (out / "model.npz").exists()


TRAIN = ["--config", "{work}/c.yaml"]
RELATIVE = [
    ("train_imagenet", [*TRAIN, "--set", "model.arch=mine:net"], "there is no module 'mine' in"),
    ("train_imagenet", [*TRAIN, "--out", "{work}/o", "--set", "data.train=i"], "error: i: no such file or folder"),
    ("make_digits", ["--out", "digits"], f"error: digits: {GONE}"),
    ("pack_dataset", ["--verify", "packed"], f"error: packed: {GONE}"),
    ("pack_dataset", ["--source", "s", "--out", "o", "--format", "tfrecord"], f"error: s: {GONE}"),
    ("pack_dataset", ["--source", "{work}/val", "--out", "o", "--format", "tfrecord"], f"error: o: {GONE}"),
    ("convert_report", ["mine:net"], "error: there is no module 'mine' in the working directory"),
    ("convert_weights", ["a.npz", "b.pt"], "error: a.npz: no such file"),
    ("predict", ["m.onnx", "i.jpg"], "error: m.onnx: No such file or directory"),
    ("check_gpu", ["--out", "r"], f"error: --out: r: {GONE}"),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), first(0, RELATIVE, 4))
def test_a_relative_path_in_a_removed_folder_is_one_line(work, name, arguments, expected):
    assert expected in one_line(script(work, name, *(each.format(work=work) for each in arguments)))


@pytest.mark.long
def test_an_export_in_a_removed_folder(work, trained):
    pytest.importorskip("onnxruntime")
    done = script(work, "export", "--run", trained, "--out", work / "exported", "--val-images", 4)
    assert (done.returncode, done.stderr) == (0, "")
    done = script(work, "predict", work / "exported" / "model.onnx", work / "val" / "a" / "00.jpg")
    assert (done.returncode, done.stderr) == (0, "")
    expected = f"error: e: {GONE}"
    assert one_line(script(work, "export", "--run", trained, "--out", "e")) == expected


@pytest.mark.parametrize("option", first(0, ["-OO", "-bb"], 1))
def test_a_training_with_an_option_of_python(work, trained, option):
    """``-OO`` leaves out docstrings, from which the list of replacements has its reasons, and asserts."""
    out = work / f"out{option}"
    done = script(work, "train_imagenet", "--config", "c.yaml", "--out", out, cwd=work, options=[option])
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("model.npz", "snapshot_best.npz"):
        assert finished_run.members(out / name) == finished_run.members(trained / name)


def test_a_dali_that_does_not_start_is_one_line(monkeypatch):
    """It extends docstrings, which ``-OO`` leaves out."""

    def fail(name):
        raise TypeError("no docstring")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(DataError, match=r"^NVIDIA DALI is broken here \(TypeError: no docstring\): take data\.loader="):
        require_dali()


@pytest.mark.slow
def test_converting_without_docstrings():
    code = """
        import mixprec, mixprec.patches, chainer.links as L, numpy as np
        print(mixprec.convert(L.Linear(3, 2), example=np.ones((2, 3), "f")))
        print(mixprec.patches.report())
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONOPTIMIZE": "2"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(python -OO leaves out the reason)" in done.stdout


HELP = sorted(path.stem for path in (ROOT / "scripts").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", first(0, HELP, 1))
def test_help_without_docstrings(work, name):
    done = script(work, name, "--help", cwd=work, options=["-OO"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


NOWHERE = {
    "no HOME": {"HOME": "", "XDG_CACHE_HOME": ""},
    "HOME cannot be written": {"HOME": "/proc", "XDG_CACHE_HOME": ""},
    "the cache is a file": {"XDG_CACHE_HOME": str(ROOT / "setup.cfg")},
    "matplotlib's folder is a file": {"MPLCONFIGDIR": str(ROOT / "setup.cfg")},
}


@pytest.mark.long
@pytest.mark.parametrize("case", NOWHERE)
def test_a_training_with_nowhere_to_keep_things(work, trained, case):
    """What cannot be kept is said, and the results are the same."""
    out = work / f"out {case}".replace(" ", "-").replace("'", "")
    done = script(work, "train_imagenet", "--config", "c.yaml", "--out", out, cwd=work, **NOWHERE[case])
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert finished_run.members(out / "model.npz") == finished_run.members(trained / "model.npz")
