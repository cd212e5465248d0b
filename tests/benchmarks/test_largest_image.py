"""scripts/benchmark.py memory: trials keep to the budget, the search finds the limit, the page says what was found."""

import json
import os
import re

import pytest

import mixprec
from benchmarks.activations import largest, trial, ways
from benchmarks.bars import page
from mixprec.activation_memory.recomputation import is_recomputed
from scripts import benchmark

pytestmark = pytest.mark.slow

FIXED, OF_A_PIXEL = 100e6, 400.0  # bytes that a stub of a process takes


@pytest.fixture(autouse=True)
def _fine_steps(monkeypatch):
    """The search goes in steps of 32 pixels here."""
    monkeypatch.setattr(largest, "MULTIPLE", 32)


def _setting(budget, folder="/nowhere"):
    return ways.Setting(budget, width=2, batch=1, dtype="float16", folder=str(folder), steps=2)


def _stub(limits):
    """Trials that fit up to a size, and take memory as processes do."""
    tried = []

    def run(way, setting, size):
        tried.append((way, size))
        if size > limits[way]:
            return trial.Trial(way, size, "more than the budget")
        peak = int(FIXED + (setting.budget - FIXED) * (size / limits[way]) ** 2)
        seconds = (1e-6 * size**2, 2e-6 * size**2)
        return trial.Trial(way, size, "", int(FIXED), (peak,) * 4, seconds, "a plan" if "offload" in way else "")

    run.tried = tried
    return run


@pytest.mark.parametrize("limit", [32, 64, 96, 320, 1000, 2208, 5000])
@pytest.mark.parametrize("skew", [0.6, 1.0, 1.5])
def test_the_search_finds_the_limit_in_few_trials(limit, skew):
    budget = int(FIXED + OF_A_PIXEL * limit**2)
    tried = []

    def run(size):
        tried.append(size)
        if size > limit:
            return trial.Trial(ways.KEPT, size, "too much")
        peak = int(FIXED + OF_A_PIXEL * size**2 * skew)
        return trial.Trial(ways.KEPT, size, "", int(FIXED), (peak,), (1.0,))

    upper = largest.upper(_setting(budget))
    assert upper > limit
    found, reason = largest.largest(run, budget, upper)
    assert found.size == limit // 32 * 32
    assert reason == "too much"
    assert len(tried) == len(set(tried))
    assert len(tried) <= (12 if skew == 1.0 else 18)


def test_nothing_fits():
    found, reason = largest.largest(lambda size: trial.Trial(ways.KEPT, size, "too much"), 10**9, 960)
    assert (found, reason) == (None, "too much")


def test_processes_keep_to_the_budget(tmp_path):
    (fits, reaches) = (trial.run("offload", _setting(10**9, tmp_path), 64), trial.run("kept", _setting(10**9), 64))
    for found in (fits, reaches):
        assert found.reason == ""
        assert 0 < found.before < found.peak < 10**9
        assert len(found.seconds) == 2
    assert (len(fits.peaks), len(reaches.peaks)) == (4, 3)
    assert "if all is kept" in fits.plan
    assert reaches.plan == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_offloading_takes_less(tmp_path):
    kept = trial.run("kept", _setting(10**9), 1024)
    budget = int(0.3 * kept.before + 0.7 * kept.peak)
    assert trial.run("kept", _setting(budget), 1024).reason == "more than the budget"
    offloaded = trial.run("offload", _setting(budget, tmp_path), 1024)
    assert offloaded.reason == ""
    assert offloaded.peak <= budget


def test_a_trial_that_fails_otherwise_is_no_size_that_does_not_fit():
    with pytest.raises(trial.TrialError, match=r"offload, 64x64 pixels: .*nowhere"):
        trial.run("offload", _setting(10**9), 64)
    assert "MALLOC_MMAP_THRESHOLD_" not in os.environ


def test_the_command_and_the_page(tmp_path, monkeypatch, capsys):
    limits = dict(zip(ways.WAYS, (320, 400, 640, 640, 20), strict=True))
    stub = _stub(limits)
    monkeypatch.setattr(trial, "run", stub)
    path = tmp_path / "2026-11-25-memory-cpu.json"
    benchmark.main(["memory", "--budget", "500 MB", "--width", "4", "--folder", str(tmp_path), "--json", str(path)])
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    settings = {"budget": 500_000_000, "width": 4, "batch": 1, "dtype": "float16", "steps": 2}
    assert record["settings"] == settings
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu", "threads"} <= record.keys()
    sizes = [row["largest"] and row["largest"]["size"] for row in record["rows"]]
    assert sizes == [320, 384, 640, 640, None]
    assert [row["common"] and row["common"]["size"] for row in record["rows"]] == [320, 320, 320, 320, None]
    assert stub.tried[-4:] == [(way, 320) for way in list(ways.WAYS)[:4]]
    assert re.search(r"^offload +640x640 +4\.00 +500 +0\.61 +1\.00 +0\.15 +1\.00$", printed, re.MULTILINE)
    assert re.search(r"^offload, recompute: blocks +none fits$", printed, re.MULTILINE)
    other = tmp_path / "2026-11-24-memory-cpu.json"
    other.write_text(json.dumps({**record, "date": "2026-11-24T06:04:51+00:00", "cpu": "Older"}))
    out = tmp_path / "results.md"
    benchmark.main(["page", "--results", str(tmp_path), "--out", str(out)])
    text = out.read_text()
    assert f"{record['threads']} thread" in text
    assert "Older" not in text
    assert "U-Net of width 4 in float16, batch 1, the largest image in 0.5 GB" in text
    command = "python scripts/benchmark.py memory --budget '500 MB' --steps 2 --width 4 --batch 1 --dtype float16`"
    assert command in text
    assert "| offload | 640x640 | 4.00 |" in text
    assert "| offload, recompute: blocks | none fits |  |  |  |  |  |  |" in text
    assert "s a step, 320x320" in text


def test_the_page_without_a_record_has_no_section():
    assert "## Memory" not in page.page({})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "much"], "budget must be a size such as"),
        (["--budget", "0.5"], "expected a size such as '2 GB', not a share"),
        (["--folder", "/no/such/folder"], "/no/such/folder is no folder"),
        (["--width", "0"], "expected an integer of at least 1"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        benchmark.main(["memory", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_all_ways_train_alike(tmp_path):
    losses = {}
    for name, way in ways.WAYS.items():
        training = ways.Training(way, _setting(10**9, tmp_path), 128)
        memory = mixprec.offload("10 GB", to=tmp_path, smallest=1) if way.offload else None
        losses[name] = [training.step(memory) and float(training.loss) for _ in range(4)]
        marked = [link for link in training.model.links() if is_recomputed(link)]
        assert len(marked) == (9 if way.blocks else 0)
    assert all(each == losses[ways.KEPT] for each in losses.values()), losses
    assert losses[ways.KEPT][3] < losses[ways.KEPT][0]
