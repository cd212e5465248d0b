"""Frozen parts, rates of parts and schedule-free SGD through the training command."""

import numpy as np
import pytest
import yaml

from mixprec.app.commands import train as command
from mixprec.training import snapshots
from mixprec.training.plots import Plots
from tests.app.run.test_resume import NETWORKS, SECTIONS
from tests.called import call

FREE = ["optimizer.name=ScheduleFreeSGD", "optimizer.lr=0.5", "schedule.kind=constant", "schedule.warmup_epochs=1"]


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs the command in an empty folder with keys of a config; returns what it has said."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SECTIONS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time

    def train(out, *settings, more=()):
        words = [word for setting in settings for word in ("--set", setting)]
        return call(lambda argv: command.main(argv, NETWORKS), "--config", "c.yaml", "--out", out, *words, *more)

    return train


def _weights(out):
    return dict(np.load(f"{out}/model.npz"))


def test_parts_are_frozen_and_said_to_be(train):
    freeze, rates = 'optimizer.freeze=["/conv/*", "/norm/gamma"]', 'optimizer.rates={"/linear/*": 10, "/conv/W": 2}'
    run = train("two", freeze, rates)
    assert run.returncode == 0, run.stderr
    line = "parts: 2 parameters (112 elements) frozen, 2 parameters (50 elements) with 10 times the learning rate"
    assert line in run.stdout.splitlines()
    assert line in train("dry", freeze, rates, more=["--dry-run"]).stdout.splitlines()
    assert train("one", freeze, rates, "training.epochs=1").returncode == 0
    two, one = _weights("two"), _weights("one")
    same = {name for name in two if two[name].tobytes() == one[name].tobytes()}
    assert {"conv/W", "norm/gamma"} <= same
    assert not {"linear/W", "linear/b", "norm/beta", "norm/avg_mean"} & same
    plain = train("plain")
    assert not any(line.startswith("parts:") for line in plain.stdout.splitlines())


NO_PATTERNS = [
    (
        'optimizer.freeze=["/linaer/*"]',
        "error: --set: 'optimizer.freeze' has '/linaer/*', which matches no parameter; did you mean '/linear/*'",
    ),
    ("optimizer.rates={/x: 2}", "'/x', which matches no parameter; there are /conv/*, /linear/*, /norm/*, ..."),
    (
        'precision.keep_float32=["/linaer"]',
        "error: --set: 'precision.keep_float32' has '/linaer', which matches no link; did you mean '/linear'?",
    ),
    ('optimizer.freeze=["*"]', "'optimizer.freeze' and 'optimizer.rates' freeze all parameters"),
]


@pytest.mark.parametrize(("setting", "message"), NO_PATTERNS)
def test_a_pattern_for_nothing_is_an_error_of_one_line(train, tmp_path, setting, message):
    run = train("out", setting)
    (line,) = run.stderr.splitlines()
    assert run.returncode == 2
    assert message in line
    assert "predictor" not in line
    assert not (tmp_path / "out").exists()


def test_schedule_free_sgd_saves_its_average(train):
    assert train("whole", *FREE).returncode == 0
    newest = snapshots.newest("whole")
    file = dict(np.load(newest))
    found = _weights("whole")
    for name in ("conv/W", "norm/gamma", "linear/W", "linear/b"):
        y, z = file[f"updater/model:main/predictor/{name}"], file[f"updater/optimizer:main/predictor/{name}/z"]
        assert (found[name] != y).any()
        np.testing.assert_allclose(found[name], y + (1 - 1 / 0.9) * (z - y), rtol=0, atol=1e-6)
    sums = file["updater/optimizer:main/predictor/linear/b/carried"]
    assert sums == pytest.approx([sum((0.5 * min(1, (step + 1) / 5)) ** 2 for step in range(10)), 0.5])
