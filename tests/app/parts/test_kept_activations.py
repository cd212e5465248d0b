"""The config section ``memory`` in the training command: the same weights, what it says, and bad settings."""

import os
import re

import numpy as np
import pytest
import yaml

from mixprec.activation_memory import made_plans, planning
from mixprec.app.commands import train as command
from mixprec.app.parts import kept_activations
from mixprec.app.run.training_run import MEMORY
from models import MODELS
from tests.cases import first

SECTIONS = {
    "model": {"arch": "resnet8", "classes": 10},
    "data": {"format": "synthetic", "synthetic_images": 72, "size": 32, "resize": 32},
    "optimizer": {"lr": 0.01},
    "training": {"batch_size": 16, "epochs": 2, "device": "cpu", "accumulation_steps": 2},
    "snapshot": {"best": False, "every": "1 iteration", "keep": 2},
}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An empty working directory with a config, and plans with the smallest budget."""

    def plan(recording, budget, bus, **wishes):
        least = planning.least(recording, smallest=wishes["smallest"])
        return planning.plan(recording, least, bus, **wishes)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(made_plans, "plan", plan)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SECTIONS))
    return tmp_path


def _main(out, *settings, arguments=()):
    sets = [word for setting in settings for word in ("--set", setting)]
    return command.main(["--config", "c.yaml", "--out", out, *sets, *arguments], MODELS)


def _weights(out):
    with np.load(os.path.join(out, "model.npz")) as arrays:
        return {name: arrays[name].tobytes() for name in arrays}


@pytest.mark.parametrize(("recompute", "budget"), first(0, [("auto", None), ("blocks", "8 GB"), ("none", "8 GB")], 1))
def test_the_same_weights(work, recompute, budget, capsys):
    assert _main("plain") == 0
    settings = [f"memory.recompute={recompute}", *([] if budget is None else [f"memory.budget={budget}"])]
    assert _main("limited", *settings) == 0
    assert _weights("limited") == _weights("plain")
    printed = capsys.readouterr().out
    found = re.search(
        r"memory: (\d) blocks are recomputed .* ([0-9.]+) MiB per image instead of ([0-9.]+) MiB", printed
    )
    assert (found is not None) == (recompute == "blocks")
    assert found is None or float(found[2]) < float(found[3])
    assert (work / "limited" / MEMORY).exists() == (budget is not None)
    assert not (work / "plain" / MEMORY).exists()
    if budget is not None:
        assert "memory: at most 8 GB; the rest waits in a file in limited\n" in printed
        text = (work / "limited" / MEMORY).read_text()
        assert text.strip() in printed
        assert recompute == "blocks" or re.search("^(swapped|recomputed) +[1-9]", text, re.MULTILINE)


@pytest.mark.slow
def test_blocks_by_themselves_if_the_run_does_not_fit(work, monkeypatch, capsys):
    monkeypatch.setattr(kept_activations.estimates, "available", lambda device: (2**20, "a very small machine"))
    assert _main("limited", "memory.recompute=auto") == 0
    assert "blocks are recomputed in the backward pass" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_compares(work, capsys):
    assert _main("dry", "memory.budget=0.9", arguments=["--dry-run"]) == 0
    printed = capsys.readouterr().out
    rows = re.findall(r"^  (.+?) +([0-9.]+) [MG]iB +([0-9.e-]+) s +([0-9.]+) x$", printed, re.MULTILINE)
    assert [name for name, *_ in rows] == [
        "all kept",
        "3 blocks recomputed",
        "offloaded, 0.9",
        "offloaded, 0.9, or recomputed by layers",
    ]
    assert rows[0][3] == "1.00"
    assert os.listdir(work) == ["c.yaml"]


BAD = [
    (["memory.budget=16 XB"], "'memory.budget' is '16 XB'; allowed: text or a number such as 16 GB, 500 MiB or 0.8"),
    (["memory.budget=-1"], "'memory.budget' is -1; allowed: "),
    (["memory.recompute=all"], "'memory.recompute' is 'all'; allowed: none, blocks, auto"),
    (["memory.to=x"], "allowed: memory.to only with memory.budget"),
    (["memory.budget=1 GB", "memory.to=host"], "'memory.to' is 'host'; allowed on the CPU: a folder, or null"),
    (["memory.budget=1 GB", "memory.to=nowhere"], "'memory.to' is 'nowhere', which is not a writable folder"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_bad_settings(work, settings, message, capsys):
    assert _main("bad", *settings) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert os.listdir(work) == ["c.yaml"]


def test_a_budget_that_nothing_meets(work, monkeypatch, capsys):
    monkeypatch.setattr(made_plans, "plan", planning.plan)
    assert _main("small", "memory.budget=1 MB") == 2
    assert re.search(
        r"error: memory\.budget: no plan fits into 1\.0 MB: .* takes [0-9,.]+ MB, .*; raise it, or lower",
        capsys.readouterr().err,
    )


@pytest.mark.slow
def test_a_dry_run_refuses_a_budget(work, capsys):
    assert _main("dry", "memory.budget=2 MB", arguments=["--dry-run"]) == 2
    error = capsys.readouterr().err
    assert re.search(
        r"memory\.budget 2 MB: a step does not fit, [0-9.]+ [MG]iB is the least that would do; raise it", error
    )
    assert os.listdir(work) == ["c.yaml"]
