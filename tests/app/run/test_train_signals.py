"""Promise 5: runs that are stopped, killed and resumed leave the log, snapshots and weights of a run left alone."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixprec.app.commands import train as command
from mixprec.app.run import lock, surroundings
from mixprec.training import snapshots
from mixprec.training.plots import Plots
from tests import ROOT
from tests.app.run import finished_run, small_images
from tests.app.run.signalling_network import Tiny
from tests.cases import first, tries

pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")

# The calls of the network: steps, and batches of evaluations.
CALLS = 3 * (["step", "step", "step", "step", "step", "step", "batch", "batch"])
EVALUATIONS = [place for place, call in enumerate(CALLS, 1) if call == "batch"]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with 22 training and 7 validation images, 6 and 2 batches of 4, and a config."""
    root = tmp_path_factory.mktemp("work")
    small_images.make(root / "images")
    sections = {
        "model": {"arch": "tiny", "classes": 3},
        "loss_scale": {"growth_interval": 3, "init_scale": 2.0**20},
        "data": {"train": "images/train", "val": "images/val", "size": 8, "resize": 8, "threads": 1},
        "optimizer": {"lr": 0.02, "weight_decay": 0.001},
        "training": {"batch_size": 4, "epochs": 3, "device": "cpu", "ema_decay": 0.9},
        "snapshot": {"every": "5 iterations"},
        "log": {"every": "4 iterations"},  # never where an epoch ends, but at the end of training
    }
    (root / "small.yaml").write_text(yaml.safe_dump(sections))
    return root


@pytest.fixture(scope="module")
def train(work):
    """Runs the command in this process, with a signal on the way; returns its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setenv("XDG_CACHE_HOME", str(work / "cache"))
        patch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time
        patch.setattr(surroundings, "report", lambda ranks: "")

        def train(*arguments, place=None):
            Tiny.place, Tiny.number, Tiny.calls = place, signal.SIGTERM, 0
            return command.main(["--config", "small.yaml", *arguments], {"tiny": Tiny})

        yield train


@pytest.fixture(scope="module")
def whole(train, work):
    """The folder of the run that was left alone."""
    assert train("--out", "whole") == 0
    assert Tiny.calls == len(CALLS)
    return work / "whole"


def _assert_same(found, expected, last=18):
    assert finished_run.log(found) == finished_run.log(expected)
    for name in (f"snapshot_iter_{last}.npz", "snapshot_best.npz", "model.npz"):
        first, second = (finished_run.members(folder / name) for folder in (found, expected))
        assert first.keys() == second.keys()
        assert [member for member in first if first[member] != second[member]] == [], name


def _iterations(folder):
    return sorted(int(re.fullmatch(r"snapshot_iter_(\d+)\.npz", path.name)[1]) for path in folder.glob("*_iter_*"))


def _files(folder):
    """What is there besides snapshots, and what earlier processes have said of themselves."""
    return {path.name for path in folder.iterdir() if not re.search(r"_iter_|environment\.\d+", path.name)}


def test_the_run_that_was_left_alone(whole):
    assert [entry["iteration"] for entry in finished_run.log(whole)] == [4, 8, 12, 16, 18]
    evaluated = ["validation/main/accuracy" in entry for entry in finished_run.log(whole)]
    assert evaluated == [False, True, True, False, True]
    assert _iterations(whole) == [10, 15, 18]


@pytest.mark.parametrize("place", first(3, [5, EVALUATIONS[0], EVALUATIONS[-1], 1, EVALUATIONS[3]]))
def test_sigterm_and_resume(train, work, whole, capsys, place):
    """At the end of a step; in an evaluation after it, which the resumed run does first."""
    out = work / f"stopped{place}"
    assert train("--out", out.name, place=place) == 0
    step = CALLS[:place].count("step")
    where = "in the evaluation" if CALLS[place : place + 1] == ["batch"] else "at the end"
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.splitlines()[-1] == (
        f"stopped by SIGTERM {where} of iteration {step}; --resume auto goes on from "
        f"{out.name}/snapshot_iter_{step}.npz"
    )
    assert json.loads((out / "status.json").read_text())["state"] == "stopped"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert _iterations(out)[-1] == step
    assert not (out / "model.npz").exists()

    assert train("--out", out.name, "--resume", "auto") == 0
    _assert_same(out, whole)
    assert _files(out) == _files(whole)
    assert len(_iterations(out)) <= 3


@pytest.mark.slow
@settings(max_examples=tries(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.sampled_from(["float16", "float32"]))
def test_a_run_that_is_stopped_again_and_again(train, work, places, compute):
    reference, out = work / f"whole-{compute}", work / "again"
    arguments = ("--set", f"precision.compute={compute}", "--set", "snapshot.keep=1", "--out")
    if not reference.exists():
        assert train(*arguments, reference.name) == 0
    shutil.rmtree(out, ignore_errors=True)
    for place in places:
        assert train(*arguments, out.name, "--resume", "auto", place=place) == 0
    assert train(*arguments, out.name, "--resume", "auto") == 0
    _assert_same(out, reference)
    assert len(_iterations(out)) == 1


def test_the_evaluation_is_stopped_in_the_resumed_run_too(train, work, whole):
    out = work / "twice"
    for place in (EVALUATIONS[0], 1):  # the first call of the resumed run is again the first batch of the evaluation
        assert train("--out", out.name, "--resume", "auto", place=place) == 0
        assert _iterations(out)[-1] == 6
    assert train("--out", out.name, "--resume", "auto") == 0
    _assert_same(out, whole)


def test_sigterm_while_a_snapshot_is_written(train, work, whole, monkeypatch):
    save, out = snapshots.AtomicWriter.save, work / "writing"
    asked = []

    def interrupted(self, filename, *args, **kwargs):
        if "_iter_10" in filename and not asked:
            asked.append(os.kill(os.getpid(), signal.SIGTERM))
        save(self, filename, *args, **kwargs)

    monkeypatch.setattr(snapshots.AtomicWriter, "save", interrupted)
    assert train("--out", out.name) == 0
    assert _iterations(out) == [5, 10]
    assert train("--out", out.name, "--resume", "auto") == 0
    _assert_same(out, whole)


@pytest.mark.parametrize("place", [3, EVALUATIONS[0]])
def test_a_snapshot_that_cannot_be_written_is_one_line(train, work, capsys, monkeypatch, place):
    """The disk is full: that there is no snapshot must not look like success, also if the run is stopped."""

    def full(file, target, compression):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots.AtomicWriter.__init__, "__defaults__", (full,))
    out = work / f"full{place}"
    assert train("--out", out.name, "--set", "snapshot.every=1 epoch", place=place) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"error: {out.name}/snapshot_\w+\.npz: cannot be written \(No space left on device\)", line)
    assert not [name for name in os.listdir(out) if name.startswith((".tmp", "snapshot"))]


def test_a_snapshot_of_a_longer_run_is_an_error(train, work, whole, capsys):
    """Training would not end at 2 epochs, where it never comes again, but at 4."""
    out = work / "shorter"
    shutil.copytree(whole, out)
    assert train("--out", out.name, "--resume", "auto", "--set", "training.epochs=2") == 2
    assert capsys.readouterr().err == (
        "error: shorter/snapshot_iter_18.npz: of epoch 3, and training.epochs is 2; it must be at least that\n"
    )
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == {
        path.name: path.stat().st_mtime_ns for path in whole.iterdir()
    }
    assert train("--out", out.name, "--resume", "auto") == 0  # one that is over does nothing
    _assert_same(out, whole)


# Signals that nobody can handle, in a process of its own


PROGRAM = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tests.app.run.signalling_network import Tiny
from mixprec.app.commands import train as command; from mixprec.training import snapshots
from mixprec.training.plots import Plots

def forever():
    while True:
        print("waits", flush=True)

def killed(self, filename, outdir, target, savefun, **keywords):
    def half(file, target, compression):
        savefun(file, target, compression=compression)
        with open(file, "r+b") as written:
            written.truncate(os.path.getsize(file) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    save(self, filename, outdir, target, half if filename == {filename!r} else savefun, **keywords)

save, snapshots.AtomicWriter.save = snapshots.AtomicWriter.save, killed
Tiny.place, Tiny.number, Tiny.then = {place!r}, {number}, forever
Plots.__call__ = lambda self, trainer: None
sys.exit(command.main(["--config", "small.yaml", *sys.argv[1:]], {{"tiny": Tiny}}))
"""


def _start(work, out, number, place=None, filename=None, before="", settings=()):
    program = before + PROGRAM.format(root=str(ROOT), number=int(number), place=place, filename=filename)
    return subprocess.Popen(
        [sys.executable, "-c", program, "--out", out, *settings],
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


KILLS = [
    (EVALUATIONS[-1], None, 18),  # in the last evaluation, before which there is a snapshot
    (10, None, 5),
    (None, "snapshot_iter_15.npz", 10),
    (None, "snapshot_best.npz", 5),
]


@pytest.mark.parametrize(("place", "filename", "last"), first(1, KILLS))
def test_kill_9_and_resume(train, work, whole, place, filename, last):
    """In a step, in an evaluation, and half way through the file of a snapshot."""
    out = work / f"killed-{place}-{filename}"
    process = _start(work, out.name, signal.SIGKILL, place, filename)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, errors
    assert _iterations(out)[-1:] == [last]
    status = json.loads((out / "status.json").read_text())
    assert (status["state"] in ("training", "evaluating"), status["pid"]) == (True, process.pid)
    assert lock.start_of(status["pid"]) != status["start"]  # by which the process is known to have gone
    assert train("--out", out.name, "--resume", "auto") == 0
    _assert_same(out, whole)
    assert _files(out) == _files(whole)
    assert json.loads((out / "status.json").read_text())["state"] == "done"


OFTEN = ("--set", "snapshot.every=3 iterations", "--set", "training.epochs=5")


@pytest.fixture(scope="module")
def often(train, work):
    """The folder of a run of 30 steps with a snapshot every 3 that was left alone."""
    assert train("--out", "often", *OFTEN) == 0
    return work / "often"


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_kill_9_at_random_moments_and_resume(train, work, often, part):
    """20 in all, others in each run."""
    choose = random.Random()
    for number in range(5):
        out, last = work / f"moment{part}-{number}", choose.randrange(3, 25)
        process = _start(work, out.name, signal.SIGKILL, settings=OFTEN)
        while max(_iterations(out), default=0) < last and process.poll() is None:
            time.sleep(0.005)
        time.sleep(choose.uniform(0, 0.02))  # in a step, an evaluation, or while a file is written
        process.kill()
        process.communicate()
        assert max(_iterations(out)) >= last - 2 or process.returncode == 0
        assert train("--out", out.name, "--resume", "auto", *OFTEN) == 0
        _assert_same(out, often, last=30)
        assert _files(out) == _files(often)


@pytest.mark.slow
def test_a_second_sigterm_ends_the_process_at_once(work):
    """The first comes in a step that never ends."""
    process = _start(work, "second", signal.SIGTERM, place=4)
    try:
        assert b"waits\n" in iter(process.stdout.readline, b"")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_a_second_ctrl_c_ends_training_at_once(work):
    """The first comes in a step; what is to be ended after it never ends."""
    program = """
import time
from mixprec.data.loaders.dali import DaliIterator

def finalize(self):
    print("ends", flush=True)
    [time.sleep(0.1) for _ in range(6000)]  # a signal just before a sleep is seen after it

DaliIterator.finalize = finalize
"""
    process = _start(work, "twice-interrupted", signal.SIGINT, place=4, before=program)
    try:
        assert b"ends\n" in iter(process.stdout.readline, b"")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, b"interrupted\n")
