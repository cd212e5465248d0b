"""A run that has diverged is an error, also where nothing is inf: exit code 1, one line, and no file of its weights."""

import json
import math
import os
import re
import signal

import chainer
import numpy as np
import pytest
import yaml

from mixprec.app.commands import train as command
from mixprec.app.run import surroundings
from mixprec.base import files
from mixprec.kfac.sharing import DampingTooSmall
from mixprec.optimizer.step import OptimizerStep
from mixprec.training.divergence import SoundLosses
from mixprec.training.evaluation import Evaluator
from mixprec.training.plots import Plots
from tests.app.run import finished_run, rank_runs, small_images
from tests.app.run.signalling_network import Tiny
from tests.cases import first

STEPS = 6  # of an epoch
MODES = ("none", "static", "dynamic")
DTYPES = ("float32", "float16", "bfloat16")


class Doomed(Tiny):
    """A network whose logits are multiplied by something from a call on, in steps, or in evaluations."""

    since, until, factor, training, called = math.inf, math.inf, 1.0, True, 0

    def forward(self, x):
        logits = super().forward(x)
        if chainer.config.train != Doomed.training or not Tiny.calls:
            return logits
        Doomed.called += 1
        return logits * np.float32(Doomed.factor) if Doomed.since <= Doomed.called < Doomed.until else logits


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with 22 training and 7 validation images, 6 and 2 batches of 4, and a config."""
    root = tmp_path_factory.mktemp("work")
    small_images.make(root / "images")
    sections = {
        "model": {"arch": "doomed", "classes": 3},
        "precision": {"compute": "float32"},
        "loss_scale": {"mode": "none"},
        "data": {"train": "images/train", "val": "images/val", "size": 8, "resize": 8, "threads": 1},
        "optimizer": {"lr": 0.02},
        "training": {"batch_size": 4, "epochs": 3, "device": "cpu"},
        "snapshot": {"every": "1 epoch", "keep": 2},
        "log": {"every": "1 epoch"},
    }
    sections["data"]["loader"] = "pillow"
    (root / "small.yaml").write_text(yaml.safe_dump(sections))
    return root


@pytest.fixture
def train(work, tmp_path, monkeypatch, capsys):
    """Runs the command on a network that is doomed; returns exit code, what it printed, its error, its folder."""
    monkeypatch.chdir(work)
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time
    monkeypatch.setattr(surroundings, "report", lambda ranks: "")
    out = tmp_path / "out"

    def train(*settings, since=math.inf, until=math.inf, factor=math.nan, training=True, arguments=(), stop=None):
        Doomed.since, Doomed.until, Doomed.factor, Doomed.training, Doomed.called = since, until, factor, training, 0
        Tiny.place, Tiny.calls, Tiny.number = stop, 0, signal.SIGTERM
        options = [word for setting in settings for word in ("--set", setting)]
        code = command.main(["--config", "small.yaml", "--out", str(out), *options, *arguments], {"doomed": Doomed})
        printed = capsys.readouterr()
        return code, printed.out, printed.err, out

    return train


def _state(out):
    return json.loads((out / "status.json").read_text())["state"]


def _snapshots(out):
    found = (re.fullmatch(r"snapshot_iter_([0-9]+)\.npz", name) for name in os.listdir(out))
    return sorted(int(match[1]) for match in found if match)


def _assert_failed(code, error, out, words):
    assert code == 1
    (line,) = error.splitlines()
    assert re.match(f"error: {words}", line), line
    assert _state(out) == "failed"
    assert not (out / "model.npz").exists()
    assert not [name for name in os.listdir(out) if name.startswith(files.TEMPORARY)]


def _assert_sound(path):
    """All weights and statistics in a snapshot are finite, and no larger than in a network that learns."""
    with np.load(path, allow_pickle=True) as arrays:
        model = {name: arrays[name] for name in arrays.files if name.startswith("updater/model:main/predictor/")}
    assert model
    assert all(np.isfinite(array).all() and np.abs(array).max() < 1e4 for array in model.values())


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "compute"), list(zip(MODES, DTYPES, strict=True)))
def test_a_learning_rate_of_a_million(train, mode, compute):
    """It diverges within some steps, in float32 without an inf for long, and patience cannot run out in so few."""
    keys = (f"loss_scale.mode={mode}", "loss_scale.init_scale=1024", f"precision.compute={compute}")
    code, printed, error, out = train("optimizer.lr=1000000", *keys)
    _assert_failed(code, error, out, "training has diverged: at its end, in iteration 18, ")
    assert "done" not in printed
    for name in os.listdir(out):
        if name.startswith("snapshot_"):
            _assert_sound(out / name)


@pytest.mark.parametrize(("mode", "compute"), first(2, zip(MODES[::-1], DTYPES, strict=True)))
def test_patience_runs_out_in_any_mode(train, mode, compute):
    keys = (f"loss_scale.mode={mode}", "loss_scale.init_scale=1024", f"precision.compute={compute}")
    code, _, error, out = train(*keys, "loss_scale.patience=4", since=STEPS + 3)
    course = {"none": "", "static": "the loss scale is always 2\\^10; ", "dynamic": "the loss scale has come down to "}
    _assert_failed(code, error, out, f"4 steps in a row overflowed, as many as patience allows; {course[mode]}")
    assert _snapshots(out) == [STEPS]
    assert json.loads((out / "status.json").read_text())["iteration"] == STEPS + 2 + 3
    _assert_sound(out / "snapshot_best.npz")


DOOMS = [
    ({"since": 2 * STEPS + 4}, "the training loss is nan"),
    ({"since": 5, "training": False}, "the validation loss is nan"),
    ({"since": 3 * STEPS, "factor": -1e20}, r"the training loss is \d\.\d+e\+\d\d, which is more than 65504"),
]
OTHERS = [["training.ema_decay=0.9"], ["training.accumulation_steps=2"]]
LAST_LOSSES = [*((*doom, []) for doom in DOOMS), *((*doom, keys) for doom, keys in zip(DOOMS, OTHERS, strict=False))]


@pytest.mark.parametrize(("doom", "words", "keys"), first(1, LAST_LOSSES))
def test_a_last_loss_that_no_network_should_have(train, doom, words, keys):
    """Of fewer steps than patience has; in steps and in evaluations; of averaged weights, and of several batches."""
    code, _, error, out = train(*keys, **doom)
    steps = 18 if "accumulation" not in str(keys) else 9
    _assert_failed(code, error, out, f"training has diverged: at its end, in iteration {steps}, {words}; no model.npz")


@pytest.mark.slow  # as the snapshots of a sound network show
def test_losses_that_recover_are_no_error(train):
    """One batch of NaN, in the last interval of the log: the step is skipped."""
    code, printed, error, out = train(since=2 * STEPS + 3, until=2 * STEPS + 4)
    assert (code, error, _state(out)) == (0, "", "done")
    assert finished_run.log(out)[-1]["main/loss"] is None
    assert (out / "model.npz").exists()
    assert "no snapshot" not in printed


def test_steps_that_are_all_skipped_train_nothing(train):
    """The scale overflows each gradient, of losses that are as they should be."""
    keys = ("precision.compute=float16", "loss_scale.mode=static", f"loss_scale.init_scale={2.0**100}")
    code, _, error, out = train(*keys)
    _assert_failed(code, error, out, "training has diverged: at its end, in iteration 18, all steps were skipped")
    assert error.endswith("try a smaller loss_scale.init_scale or optimizer.lr\n")


def test_matrices_of_kfac_that_training_has_spoilt_are_no_bad_input(train, monkeypatch):
    def spoilt(self):
        raise DampingTooSmall("KFAC: second moments of /norm are not positive definite: set a larger damping")

    monkeypatch.setattr(OptimizerStep, "_preconditioned", spoilt)
    code, _, error, out = train("optimizer.preconditioner=kfac")
    _assert_failed(code, error, out, "KFAC: second moments of .* set a larger damping; --resume auto goes on from")


SPOILT = [
    ("norm", "avg_var", math.inf, "norm/avg_var is not finite"),
    ("linear", "W", -6e14, r"linear/W contains 6e\+14, which is more than 65504"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("link", "name", "value", "words"), SPOILT)
def test_weights_that_only_the_last_step_has_spoilt(train, monkeypatch, link, name, value, words):
    """No loss knows of them."""
    check = SoundLosses.check_end

    def spoil(self, trainer):
        array = getattr(getattr(trainer.updater.get_optimizer("main").target.predictor, link), name)
        getattr(array, "array", array)[1] = value
        check(self, trainer)

    monkeypatch.setattr(SoundLosses, "check_end", spoil)
    code, _, error, out = train()
    _assert_failed(code, error, out, f"training has diverged: at its end, in iteration 18, {words};")


def test_snapshots_are_those_of_a_sound_network_and_the_best_is_one_of_them(train):
    """A network that answers NaN has an accuracy, too, and perhaps the best. A run goes on from before that."""
    code, printed, _, out = train("training.epochs=4", since=STEPS + 1, until=3 * STEPS + 2)
    assert code == 0, "it has recovered"
    said = [line for line in printed.splitlines() if "no snapshot" in line]
    assert said == ["iteration 12: no snapshot is written while the training loss is nan"]
    assert _snapshots(out) == [6, 24]
    _assert_sound(out / "snapshot_best.npz")


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", [math.nan, 1.0])
def test_the_best_snapshot_with_an_accuracy_or_a_loss_of_nan(train, monkeypatch, accuracy):
    """NaN is no best; nor is a network whose loss is NaN, whatever its accuracy, also in a run that was resumed."""
    mean, finished = Evaluator.evaluate, []

    def evaluate(self):
        finished.append(mean(self))
        number = len(finished)
        loss = math.nan if accuracy == 1.0 and number == 2 else 0.5
        values = accuracy if number == 2 else number / 10, loss
        return finished[-1] | dict(zip(("validation/main/accuracy", "validation/main/loss"), values, strict=True))

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    assert train("training.epochs=2")[0] == (1 if accuracy == 1.0 else 0)
    out = train("training.epochs=3", arguments=("--resume", "auto"))[3]
    with np.load(out / "snapshot_best.npz", allow_pickle=True) as arrays:
        assert arrays["extensions/BestSnapshot/value"] == len(finished) / 10 > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3 * STEPS + 2 * 2, None])
def test_a_run_that_has_diverged_is_not_done_when_it_is_resumed(train, stop):
    """Nor if SIGTERM came in its last step, which writes a snapshot of what is there."""
    code, printed, error, out = train(since=2 * STEPS + 4, stop=stop)
    assert (code, _snapshots(out)) == ((1, [6, 12]) if stop is None else (0, [12, 18])), error
    for _ in range(2):
        code, _, error, out = train(since=4, arguments=("--resume", "auto"))
        _assert_failed(
            code, error, out, "training has diverged: at its end, in iteration 18, the training loss is nan;"
        )
    code, printed, error, out = train("training.epochs=4", "optimizer.lr=0.01", arguments=("--resume", "auto"))
    assert (code, error) == (0, "")
    assert "changed: optimizer.lr 0.02 -> 0.01" in printed


@pytest.mark.slow
def test_two_ranks(tmp_path):
    """All end, and one says why: of patience, and of a last loss."""
    rank_runs.make_work(tmp_path)
    scale = ("optimizer.lr=1000000", "optimizer.base_batch_size=null")
    for ranks, patience in ((2, 1000), (2, 2)):
        out = f"{ranks}-{patience}"
        done = rank_runs.run(tmp_path, ranks, out, *scale, "training.epochs=6", f"loss_scale.patience={patience}")
        assert done.returncode == 1
        errors = [line for line in done.stderr.splitlines() if "error: " in line]
        words = "training has diverged: at its end" if patience > 2 else "2 steps in a row overflowed"
        assert len(errors) == 1
        assert words in errors[0], errors
        assert _state(tmp_path / out) == "failed"
        assert not (tmp_path / out / "model.npz").exists()
