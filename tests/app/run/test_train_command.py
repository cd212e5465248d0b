"""scripts/train_imagenet.py as people run it: a run, a kill, a resume, and every kind of bad input."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from chainer import serializers
from matplotlib.figure import Figure

from mixprec.app.commands import train
from mixprec.training.plots import Plots
from models import MODELS
from tests import ROOT
from tests.app.run import finished_run, small_images
from tests.called import call

pytest.importorskip("nvidia.dali", reason='needs NVIDIA DALI: pip install -e ".[dali]"')

SCRIPT = ROOT / "scripts" / "train_imagenet.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """22 training and 7 validation images of three gray levels: 6 and 2 batches of 4, the last of 2 and 3."""
    root = tmp_path_factory.mktemp("images")
    small_images.make(root)
    return root


@pytest.fixture(scope="module")
def config(images):
    """The text of a small config."""
    settings = {
        "model": {"arch": "resnet8", "classes": 3},
        "loss_scale": {"growth_interval": 3, "init_scale": 2.0**20},
        "data": (
            {"train": str(images / "train"), "val": str(images / "val"), "size": 8, "resize": 8}
            | {"crop_area": [0.5, 1.0], "threads": 1}
        ),
        "optimizer": {"lr": 0.02, "weight_decay": 0.001},
        "training": {"batch_size": 4, "epochs": 3, "device": "cpu"},
        "snapshot": {"every": "1 iteration"},
        "log": {"every": "7 iterations"},
    }
    return yaml.safe_dump(settings)


def _start(work, program, *arguments):
    """Starts a process in a folder: the script, or Python with other arguments."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(work.parent / "cache")}
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=work,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _finish(process):
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def work(config, tmp_path, monkeypatch):
    """The working directory of a test: a folder with nothing but the config."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "small.yaml").write_text(config)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def run(work, monkeypatch):
    """Calls what the script calls, but draws no plots, which takes most of the time."""
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)
    return functools.partial(call, train.main)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """The finished process of the script and its results folder, ``out``; not to be changed."""
    folder = tmp_path_factory.mktemp("whole") / "work"
    folder.mkdir()
    (folder / "small.yaml").write_text(config)
    process = _finish(_start(folder, [SCRIPT], "--config", "small.yaml", "--out", "out"))
    assert process.returncode == 0, process.stderr
    return process, folder / "out"


def test_a_run_from_config_to_results(whole, work, monkeypatch):
    process, out = whole
    lines = process.stdout.splitlines()
    log = finished_run.log(out)
    assert lines[0].startswith("device: @numpy")
    assert lines[-1].startswith("validation accuracy ")
    assert float(lines[-1].split()[-1]) == pytest.approx(log[-1]["validation/main/accuracy"], abs=5e-5)
    assert [entry["iteration"] for entry in log] == [7, 14, 18]
    assert {"main/loss", "main/accuracy", "lr", "loss_scale", "skipped"} <= log[-1].keys()
    assert len({entry["loss_scale"] for entry in log}) > 1, "the loss scale moves"
    plots = ("loss", "accuracy", "loss_scale", "learning_rate", "gradient_norm", "images_per_second")
    for name in (*(f"{plot}.png" for plot in plots), "snapshot_best.npz", "conversion.txt"):
        assert (out / name).stat().st_size > 0
    about = (out / "environment.txt").read_text()
    for row in ("command", "CPU", "memory", "folder", "NumPy", "CUDA driver"):
        assert f"\n{row} " in f"\n{about}"
    assert not [name for name in os.listdir(out) if name.startswith((".tmp", "tmp"))]

    # the resolved config is complete and runs again, with captured steps, which on a CPU are the same
    monkeypatch.setattr(Plots, "_draw", lambda self, *_: Figure())  # an empty one, which is quicker
    again = call(train.main, "--config", out / "config.yaml", "--out", "again", "--set", "capture=true")
    assert (again.returncode, again.stderr) == (0, process.stderr)
    assert finished_run.log(work / "again") == log
    for name in ("snapshot_iter_18.npz", "model.npz"):
        assert finished_run.members(work / "again" / name) == finished_run.members(out / name)
    lines = again.stdout.splitlines()
    assert "capture: none, CPUs have no graphs: steps are eager" in lines
    assert "capture: 0 of 18 steps were launches of a graph; more in again/capture.txt" in lines
    assert set(os.listdir(work / "again")) == {"capture.txt", *os.listdir(out)}
    assert yaml.safe_load((work / "again" / "config.yaml").read_text())["capture"]["mode"] == "auto"

    # the weights load into the plain network
    plain = MODELS["resnet8"](3)
    serializers.load_npz(out / "model.npz", plain)
    assert plain.conv1.W.dtype == np.float32


def _wait_for(path, process):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no snapshot after 120 s"
        time.sleep(0.01)


# Ends itself with SIGKILL in place of renaming the eighth snapshot, which is complete.
KILLED = """
import os, runpy, signal, sys
rename = os.replace
def replace(*names):
    if str(names[1]).endswith("snapshot_iter_8.npz"):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*names)
os.replace = replace
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_kill_and_resume_give_the_log_and_the_snapshot_of_an_uninterrupted_run(whole, work):
    arguments = ("--config", "small.yaml", "--out")
    last, killed, expected = "snapshot_iter_18.npz", work / "killed", whole[1]
    process = _finish(_start(work, ["-c", KILLED, SCRIPT], *arguments, "killed"))
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert (killed / "snapshot_iter_7.npz").exists()
    assert not (killed / last).exists()

    resumed = _finish(_start(work, [SCRIPT], *arguments, "killed", "--resume", "auto"))
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from killed/snapshot_iter_7.npz" in resumed.stdout
    assert finished_run.log(killed) == finished_run.log(expected)
    wanted, found = finished_run.members(expected / last), finished_run.members(killed / last)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []


def test_a_capture_that_is_required_needs_a_gpu(run, work, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    process = run("--config", "small.yaml", "--set", "training.device=auto", "--set", "capture=required")
    assert (process.returncode, process.stdout) == (2, "")
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: small.yaml: 'capture.mode' is 'required', which needs a GPU; the device is CPU: ")
    assert os.listdir(work) == ["small.yaml"]


def test_resuming_a_finished_run_says_its_result_again(run, work, whole):
    shutil.copytree(whole[1], work / "out")
    again = run("--config", "small.yaml", "--out", "out", "--resume", "auto")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1] == whole[0].stdout.splitlines()[-1]


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(work):
    process = _start(work, [SCRIPT], "--config", "small.yaml", "--out", "out", "--set", "training.epochs=1000")
    _wait_for(work / "out" / "snapshot_iter_1.npz", process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines() == ["interrupted; --resume auto goes on from the last snapshot, if there is one"]


def test_a_diverged_run_ends_with_one_line_that_names_parameters(run):
    """A scale of 2**60 overflows every gradient."""
    hopeless = [
        f"loss_scale.{setting}" for setting in ("init_scale=1152921504606846976", "max_scale=null", "patience=2")
    ]
    settings = [word for setting in hopeless for word in ("--set", setting)]
    process = run("--config", "small.yaml", "--out", "out", *settings)
    assert process.returncode == 1, process.stdout
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: 2 steps in a row overflowed")
    assert "/predictor/layer3/0/conv2/W (" in line
    assert line.endswith("every activation is finite, so that the overflow is in the backward pass")


def _bad(name, arguments, message, prepare=None):
    return pytest.param(arguments, message, prepare, id=name)


def _copy_images(images, work):
    shutil.copytree(images, work / "images")
    return work / "images" / "train"


def _empty_class(images, work):
    (_copy_images(images, work) / "d").mkdir()


def _truncate(images, work):
    path = _copy_images(images, work) / "b" / "01.jpg"
    path.write_bytes(path.read_bytes()[:-40])


def _use(images, work):
    (work / "used").mkdir()
    (work / "used" / "log").touch()


def _corrupt(images, work):
    (work / "bad.npz").write_bytes(b"PK\x03\x04 not really")


def _corrupt_newest(images, work):
    (work / "o").mkdir()
    (work / "o" / "snapshot_iter_3.npz").write_bytes(b"PK\x03\x04 not really")


OWN = ("--set", "data.train=images/train")


BAD = [
    _bad("no config", ["--config", "missing.yaml"], "missing.yaml"),
    _bad("an empty config", ["--config", ""], "argument --config: it is empty; give a file"),
    _bad("no option", ["--set", "a=1"], "--config"),
    _bad("unknown option", ["--confg", "small.yaml"], "--conf"),
    _bad("unknown key", ["--set", "optimizer.learning_rate=1"], "optimizer.lr"),
    _bad("wrong type", ["--set", "training.epochs=many"], "training.epochs"),
    _bad("bad --set", ["--set", "training.epochs"], "training.epochs"),
    _bad("bad loss scale", ["--set", "loss_scale.init_scale=3"], "loss_scale.init_scale"),
    _bad("a capture that cannot be", ["--set", "capture=true", "--set", "update.fused=false"], "update.fused"),
    _bad("unknown network", ["--set", "model.arch=resnet9"], "resnet8"),
    _bad("wrong number of classes", ["--set", "model.classes=10"], "model.classes is 10"),
    _bad("no GPU", ["--set", "training.device=gpu:77"], "gpu:77"),
    _bad("no data folder", ["--set", "data.train=nowhere"], "nowhere"),
    _bad("empty class folder", OWN, "images/train/d", _empty_class),
    _bad("truncated JPEG", OWN, "images/train/b/01.jpg", _truncate),
    _bad("batch size 0", ["--set", "training.batch_size=0"], "training.batch_size"),
    _bad("batch size too large", ["--set", "training.batch_size=23"], "22 images, but training.batch_size is 23"),
    _bad("out is not writable", ["--out", "/proc/out"], "/proc/out: not writable"),
    _bad("out is a file", ["--out", "small.yaml"], "small.yaml: not a folder"),
    _bad("out is used", ["--out", "used"], "used: already used", _use),
    _bad("corrupt snapshot", ["--resume", "bad.npz"], "bad.npz: corrupt snapshot", _corrupt),
    _bad("corrupt newest", ["--out", "o", "--resume", "auto"], "; remove it, and --resume auto", _corrupt_newest),
    _bad("no snapshot", ["--resume", "none.npz"], "none.npz: no such snapshot"),
    _bad("a misspelled auto", ["--resume", "atuo"], "atuo: no such snapshot; did you mean 'auto'?"),
    _bad("a folder of snapshots", ["--resume", "."], "not a snapshot; did you mean '--resume auto --out .'?"),
    _bad("a GPU by --set", ["--set", "training.device=@cupy:7"], "error: --set: 'training.device' is 'gpu:7', but "),
]


@pytest.mark.parametrize(("arguments", "message", "prepare"), BAD)
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(run, work, images, arguments, message, prepare):
    if prepare:
        prepare(images, work)
    before = sorted(work.rglob("*"))
    has_config = "--config" in arguments or message == "--config" or "--confg" in arguments
    process = run(*([] if has_config else ["--config", "small.yaml"]), *arguments)
    assert process.returncode == 2, process.stdout + process.stderr
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert process.stdout == ""
    assert sorted(work.rglob("*")) == before


def _files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_snapshot_of_another_model_or_other_data_is_refused(run, work, whole):
    shutil.copytree(whole[1], work / "out")
    before = _files(work)
    for setting, message in (
        ("model.arch=resnet14", "model.arch is 'resnet14' here, 'resnet8' in the snapshot, and cannot change: its "),
        ("training.batch_size=5", "training.batch_size is 5 here, 4 in the snapshot, and cannot change: its position "),
        ("data.crop_area=[0.6, 1.0]", "the snapshot's position belongs to other data or settings: crop_area is [0.6, "),
    ):
        process = run("--config", "small.yaml", "--out", "out", "--resume", "auto", "--set", setting)
        assert process.returncode == 2, process.stdout
        (line,) = process.stderr.splitlines()
        assert message in line
    assert _files(work) == before
