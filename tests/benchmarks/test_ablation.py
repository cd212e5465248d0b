"""scripts/benchmark.py ablation: arms, verdicts, the record, and a small study that is killed and goes on."""

import fcntl
import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks import parity_runs
from benchmarks.ablation import ablation_study
from benchmarks.ablation.ablation_arms import BASELINE, DATA
from benchmarks.command_arguments import ArgumentsError
from benchmarks.parity_arms import Arm
from benchmarks.parity_runs import ParityError, Run
from benchmarks.parity_statistics import compare
from mixprec import config as configs
from models import MODELS
from scripts import benchmark
from tests import ROOT

pytestmark = pytest.mark.slow

CHOICES = {"model.arch": sorted(MODELS)}
ARMS = [Arm("mixup", "mixup=0.2", ("training.mixup=0.2",)), Arm("ema", "ema_decay=0.98", ("training.ema_decay=0.98",))]


def _load(name, arm):
    data = DATA[name]
    settings = [*data.settings, f"training.epochs={data.epochs}", *arm.settings]
    return configs.load(data.config, settings, choices=CHOICES)


def _runs(**accuracies):
    return [
        Run(arm, seed, (10.0, accuracy), skipped=0, loss_scale=1.0, seconds=2.0 + seed)
        for arm, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with empty folders in the place of images."""
    monkeypatch.chdir(tmp_path)
    for name in DATA:
        data = _load(name, BASELINE).data
        for path in (data.train, data.val):
            (tmp_path / path).mkdir(parents=True)
    return tmp_path


# Arms


@pytest.mark.parametrize("name", DATA)
def test_arms_are_configs_that_differ_from_the_baseline(name):
    arms = DATA[name].arms
    assert all(_load(name, arm) != _load(name, BASELINE) for arm in arms.values())
    assert len({arm.settings for arm in arms.values()}) == len({arm.title for arm in arms.values()}) == len(arms)
    assert BASELINE.name not in arms
    assert not BASELINE.settings


@pytest.mark.parametrize("name", DATA)
def test_learning_rate_of_bce_makes_up_for_the_mean_over_classes(name):
    """lr * gradient and lr * weight_decay are those of the sum over the classes with the rates of the baseline."""
    baseline, bce = _load(name, BASELINE), _load(name, DATA[name].arms["bce"])
    assert bce.training.loss == "bce"
    assert bce.optimizer.lr / bce.model.classes == pytest.approx(baseline.optimizer.lr)
    product = baseline.optimizer.lr * baseline.optimizer.weight_decay
    assert bce.optimizer.lr * bce.optimizer.weight_decay == pytest.approx(product)


# Statistics


@given(
    st.lists(
        st.tuples(*[st.floats(0, 100, allow_subnormal=False).map(lambda number: round(number, 2))] * 2),
        min_size=2,
        max_size=8,
    )
)
def test_verdict_is_that_of_scipys_paired_t_test(pairs):
    own, other = map(np.array, zip(*pairs, strict=True))
    found = ablation_study.verdict(compare(own.tolist(), other.tolist()))
    if np.ptp(own - other) < 1e-9:  # scipy warns of what is all the same
        return
    result = stats.ttest_rel(own, other)
    if abs(result.pvalue - 0.05) > 1e-6:
        seen = result.pvalue < 0.05
        assert found == (("better" if result.statistic > 0 else "worse") if seen else "no difference seen")


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.0, 0.0, 0.0], "no difference seen"),
        ([0.1, 0.1, 0.1], "better"),
        ([-0.1, -0.1], "worse"),
        ([3.0, -1.0, 4.0, 5.0, -0.5], "no difference seen"),  # the mean alone is not enough
        ([1.0, 2.0, 3.0, 2.0, 1.0], "better"),
        ([-1.0, -2.0, -3.0, -2.0, -1.0], "worse"),
        ([5.0], "one seed: no interval"),
    ],
)
def test_verdict_goes_by_the_interval(differences, verdict):
    paired = compare(differences, [0.0] * len(differences))
    assert ablation_study.verdict(paired) == verdict


def test_table_says_what_is_in_the_json():
    """Interval of the first row by hand: differences 1, 2 and 3, 2 +- 4.303 / sqrt(3)."""
    runs = _runs(ema=(80.0, 80.5, 82.0), mixup=(81.0, 83.0, 85.0), baseline=(80.0, 81.0, 82.0))
    record = json.loads(json.dumps(ablation_study.as_json(runs, ARMS, seeds=3)))
    assert ablation_study.table(record).splitlines() == [
        "| Arm | Settings | Accuracy, % | Difference, points | 95% interval |  | s a run |",
        "|---|---|---|---|---|---|---|",
        "| baseline |  | 81.00 |  |  |  | 3 |",
        "| mixup | mixup=0.2 | 83.00 | +2.00 | -0.48 to +4.48 | no difference seen | 3 |",
        "| ema | ema_decay=0.98 | 80.83 | -0.17 | -0.88 to +0.55 | no difference seen | 3 |",
        "",
        'Seeds: 3. Of 2 arms that do nothing about 0.1 would be called "better" or "worse" by chance.',
    ]
    assert record["rows"][1]["difference"]["differences"] == [1.0, 2.0, 3.0]
    assert record["rows"][1]["settings"] == ["training.mixup=0.2"]
    assert len(record["runs"]) == 9


# Command


@pytest.fixture
def trained(monkeypatch):
    """Calls of what would train; each arm has an accuracy of its own, and each seed is 0.25 points better."""
    calls = []

    def run_all(todo, **arguments):
        calls.append((todo, arguments))
        return [
            Run(arm.name, seed, (90.0 + len(arm.name) + seed / 4,), skipped=1, loss_scale=8.0, seconds=9.0)
            for arm, seed in todo
        ]

    monkeypatch.setattr(ablation_study, "run_all", run_all)
    return calls


def test_arms_are_trained_seed_by_seed_and_recorded(folder, trained, capsys):
    benchmark.main(["ablation", "--arms", "ema,mixup", "--seeds", "2", "--json", "a.json"])
    ((todo, arguments),) = trained
    assert [(arm.name, seed) for arm, seed in todo] == [
        (name, seed) for seed in (0, 1) for name in ("baseline", "mixup", "ema")
    ]
    settings = [*DATA["digits"].settings, "training.epochs=4"]
    expected = {"settings": settings, "jobs": 2, "epochs": 4, "out": "results/ablation-digits"}
    assert arguments == expected | {"config": DATA["digits"].config}
    printed, record = capsys.readouterr().out, json.loads((folder / "a.json").read_text())
    assert printed.startswith("digits: 6 runs; epochs: 4, seeds: 2, arms beside the baseline: 2\n")
    assert ablation_study.table(record) in printed
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu", "settings", "runs"} <= record.keys()
    assert [(row["arm"], row["mean"]) for row in record["rows"]] == [
        ("baseline", 98.125),
        ("mixup", 95.125),
        ("ema", 93.125),
    ]
    assert [row["difference"]["verdict"] for row in record["rows"][1:]] == ["worse", "worse"]


def test_options_reach_the_runs(folder, trained):
    options = ["--data", "textures", "--arms", "mixup", "--seeds", "1", "--epochs", "3", "--jobs", "1", "--out", "runs"]
    benchmark.main(["ablation", *options])
    ((todo, arguments),) = trained
    assert len(todo) == 2
    assert arguments["settings"][-1] == "training.epochs=3"
    assert (arguments["epochs"], arguments["jobs"], arguments["out"]) == (3, 1, "runs")
    assert arguments["config"].name == "textures.yaml"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--data", "cats"), "error: argument --data: invalid choice: 'cats'"),
        (("--arms", "mixup,magic"), "benchmark: --arms magic: no such arm; allowed: label-smoothing, mixup,"),
        (("--arms", "progressive"), "benchmark: --arms progressive: no such arm; allowed: "),  # of textures only
        (("--seeds", "0"), "error: argument --seeds: found '0', expected an integer of at least 1"),
        (("--arms", "ema", "--epochs", "1"), "benchmark: --set: impossible combination: 'schedule.warmup_epochs' is"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_arguments_end_with_one_line(arguments, error, trained, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["ablation", *arguments])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith(error)
    assert not out
    assert not trained


def test_an_arm_that_the_config_does_not_know_is_named(folder, trained, capsys, monkeypatch):
    monkeypatch.setitem(DATA["digits"].arms, "magic", Arm("magic", "magic", ("training.magic=1",)))
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["ablation", "--arms", "ema,magic"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("benchmark: arm magic: --set: unknown key 'training.magic'; allowed: ")
    assert not trained


@pytest.mark.parametrize("name", DATA)
def test_missing_images_are_named_with_the_command_that_makes_them(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = _load(name, BASELINE).data.train
    with pytest.raises(ArgumentsError) as raised:
        ablation_study.check(DATA[name], [], MODELS, epochs=4)
    assert str(raised.value) == f"{folder} is no folder; this makes it: {DATA[name].make}"
    assert f"--out {folder.removesuffix('/train')}" in DATA[name].make


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on from the last snapshots in runs"),
        (ParityError("ema-0 ended with code 1"), 1, "ema-0 ended with code 1"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_study_that_does_not_end_says_so(error, status, message, capsys, monkeypatch):
    def run_all(todo, **_):
        raise error

    monkeypatch.setattr(ablation_study, "run_all", run_all)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["ablation", "--arms", "ema", "--out", "runs"])
    assert ended.value.code == status
    assert capsys.readouterr().err.splitlines() == [f"benchmark: {message}"]


# Runs that are there


def test_runs_of_an_arm_with_other_settings_are_not_taken(tmp_path):
    (config := tmp_path / "a.yaml").write_text("model: {}\n")

    def check(settings=(), **arms):
        parity_runs._check_same_study(tmp_path, config, settings, arms)

    check(baseline=[], mixup=["training.mixup=0.2"])
    check(baseline=[], ema=["training.ema_decay=0.9"])
    check(baseline=[], mixup=["training.mixup=0.2"])
    message = "holds runs of another config, or with other settings; give another --out"
    for arms in ({"mixup": ["training.mixup=0.1"]}, {"ema": []}):
        with pytest.raises(ParityError, match=message):
            check(**arms)
    with pytest.raises(ParityError, match=message):
        check(["training.epochs=3"], baseline=[])
    study = json.loads((tmp_path / "study.json").read_text())
    assert set(study["arms"]) == {"baseline", "mixup", "ema"}
    del study["arms"]  # as studies were written before
    (tmp_path / "study.json").write_text(json.dumps(study))
    check(ema=[])


def _wait_until_nobody_is_at_work(out):
    with open(out / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@pytest.mark.long
def test_study_is_killed_and_goes_on(tmp_path, monkeypatch, capsys):
    """Finished runs are not repeated, and numbers are those of the runs' own logs."""
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make = [sys.executable, ROOT / "scripts" / "make_digits.py", "--out", "all"]
    subprocess.run(make, check=True, capture_output=True)
    for number, path in enumerate(sorted((tmp_path / "all").glob("*/*/*"))):
        if not number % 12:
            (to := tmp_path / "data" / "digits" / path.relative_to(tmp_path / "all")).parent.mkdir(
                parents=True, exist_ok=True
            )
            shutil.copy(path, to)
    out, options = tmp_path / "runs", ["--arms", "mixup", "--seeds", "1", "--epochs", "2", "--jobs", "1"]
    options = ["ablation", *options, "--out", "runs", "--json", "a.json"]
    command = [sys.executable, ROOT / "scripts" / "benchmark.py", *options]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (out / "baseline-0" / "model.npz").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _wait_until_nobody_is_at_work(out)
    kept = {path: path.stat().st_mtime_ns for path in out.glob("baseline-0/*")}

    benchmark.main(options)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    record = json.loads((tmp_path / "a.json").read_text())
    assert ablation_study.table(record) in capsys.readouterr().out
    for run in record["runs"]:
        lines = (out / f"{run['arm']}-0" / "log.jsonl").read_text().splitlines()
        accuracies = [100 * json.loads(line)["validation/main/accuracy"] for line in lines]
        assert run["accuracies"] == pytest.approx(accuracies, abs=1e-4)
        assert len(accuracies) == 2
        resolved = configs.load(next((out / f"{run['arm']}-0").glob("*.yaml")))
        assert resolved.training.mixup == (0.2 if run["arm"] == "mixup" else 0)
    assert [run["arm"] for run in record["runs"]] == ["baseline", "mixup"]
    assert record["rows"][1]["difference"]["verdict"] == "one seed: no interval"
