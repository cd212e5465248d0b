"""scripts/benchmark.py parity and ablation: arms, statistics, the record, and a small study that is killed."""

import fcntl
import json
import signal
import subprocess
import sys
import time

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import optimizers
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import mixprec
from benchmarks.command_arguments import ArgumentsError
from benchmarks.study import study_report, study_runs
from benchmarks.study.paired import compare
from benchmarks.study.studies import ABLATIONS, PARITY
from benchmarks.study.study_arms import Arm, Study
from benchmarks.study.study_runs import Run, StudyError
from benchmarks.study.without_masters import WithoutMasters
from mixprec.app import config as configs
from models import MODELS
from scripts import benchmark
from tests import ROOT

pytestmark = pytest.mark.slow

STUDIES = {"parity": PARITY, **ABLATIONS}
RESULTS = ROOT / "benchmarks" / "results"


# Statistics


@given(
    st.lists(
        st.tuples(*[st.floats(0, 100, allow_subnormal=False).map(lambda number: round(number, 4))] * 2),
        min_size=2,
        max_size=8,
    )
)
def test_interval_is_scipys_paired_t(pairs):
    own, other = map(np.array, zip(*pairs, strict=True))
    found = compare(own.tolist(), other.tolist())
    if np.ptp(own - other) < 1e-9:  # scipy warns of what is all the same
        assert found.low == pytest.approx(found.high, abs=1e-8)
        return
    expected = stats.ttest_rel(own, other).confidence_interval(0.95)
    assert found.difference == pytest.approx((own - other).mean(), abs=1e-9)
    assert found.low == pytest.approx(expected.low, rel=1e-7, abs=1e-7)
    assert found.high == pytest.approx(expected.high, rel=1e-7, abs=1e-7)


VERDICTS = [
    ([0.1, -0.1, 0.2, 0.0], 1, "within the margin"),
    ([1.0, 1.0], 1, "within the margin"),
    ([1.5, -1.5, 0.0], 1, "not decided"),  # a mean of 0 is not enough
    ([-1.1, -9.0], 1, "not decided"),
    ([-30.0, -31.0], 1, "worse by more than the margin"),
    ([3.0, 3.1, 2.9], 1, "better by more than the margin"),
    ([0.0, 0.0, 0.0], 0, "no difference seen"),
    ([3.0, -1.0, 4.0, 5.0, -0.5], 0, "no difference seen"),  # the mean alone is not enough
    ([1.0, 2.0, 3.0, 2.0, 1.0], 0, "better"),
    ([-1.0, -2.0, -3.0, -2.0, -1.0], 0, "worse"),
    ([5.0], 0, "one seed: no interval"),
]


@pytest.mark.parametrize(("differences", "margin", "verdict"), VERDICTS)
def test_verdict_goes_by_the_whole_interval(differences, margin, verdict):
    assert compare([70 + each for each in differences], [70.0] * len(differences), margin).verdict == verdict


# Arms


@pytest.mark.parametrize("name", STUDIES)
def test_arms_are_configs_that_differ(name):
    study = STUDIES[name]
    found = [(str(configs.load(study.config, [*study.settings, *arm.settings])), arm.masters) for arm in study.arms]
    assert len(set(found)) == len(study.arms)
    names = [arm.name for arm in study.arms]
    assert len(set(names)) == len(names)
    for place, arm in enumerate(study.arms):  # references come first
        assert arm.against is None or arm.against in names[:place]


def test_an_arm_comes_with_what_it_is_compared_with():
    assert [arm.name for arm in PARITY.only(["small-scale"]).arms] == ["fp32", "fp16", "small-scale"]
    assert PARITY.only(None) == PARITY
    with pytest.raises(ArgumentsError, match="--arms magic: no such arm; allowed: fp32, fp16, "):
        PARITY.only(["fp16", "magic"])


def test_runs_of_a_seed_differ_in_the_arm_only():
    commands = [study_runs.command(PARITY, arm, 3, "out") for arm in PARITY.arms]
    for arm, words in zip(PARITY.arms, commands, strict=True):
        own = [word for setting in arm.settings for word in ("--set", setting)]
        start = words.index("--config")
        assert words[start:] == [
            *("--config", str(PARITY.config), "--set", "data.threads=1", *own, "--set", "training.seed=3"),
            *("--out", "out", "--resume", "auto"),
        ]
        assert words[start - 1].endswith("train_imagenet.py" if arm.masters else "without_masters")


# The control without masters


class Line(chainer.Chain):
    """FP16 weights and an FP32 parameter; its gradients are the same in each step."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.half = chainer.Parameter(np.linspace(-1, 1, 64).astype(np.float16))
            self.single = chainer.Parameter(np.linspace(-1, 1, 64).astype(np.float32))

    def forward(self, slope):
        return F.sum(F.cast(self.half, np.float32) * slope) + F.sum(self.single * slope)


def test_without_masters_a_step_is_that_of_weights_in_fp16():
    """Against momentum SGD written out, with FP16 weights that are all there is of them; and against masters."""
    slope = np.random.RandomState(0).normal(size=64).astype(np.float16).astype(np.float32)
    models = {}
    for optimizer_class in (WithoutMasters, mixprec.MixedPrecisionOptimizer):
        model = models[optimizer_class] = Line()
        optimizer = optimizer_class(optimizers.MomentumSGD(lr=1e-4, momentum=0.5), loss_scale=8.0).setup(model)
        for _ in range(20):
            optimizer.update(model, slope)
    without, normal = models.values()

    half, velocity = Line().half.array, np.zeros(64, np.float32)
    for _ in range(20):
        velocity = np.float32(0.5) * velocity - np.float32(1e-4) * slope
        half = (half.astype(np.float32) + velocity).astype(np.float16)
    np.testing.assert_array_equal(without.half.array, half)
    np.testing.assert_array_equal(without.single.array, normal.single.array)
    assert (without.half.array != normal.half.array).sum() > 16


# The report


def _runs(**accuracies):
    return [
        Run(arm, seed, (10.0, accuracy), skipped=0, loss_scale=1.0, rate=100.0 + seed)
        for arm, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


SMALL = Study("a.yaml", None, (Arm("baseline", against=None), Arm("mixup", ("training.mixup=0.2",)), Arm("ema")))


def test_table_says_what_is_in_the_json(tmp_path):
    """Interval of mixup by hand: differences 1, 2 and 3, 2 +- 4.303 / sqrt(3)."""
    runs = _runs(ema=(80.0,), mixup=(81.0, 83.0, 85.0), baseline=(80.0, 81.0, 82.0))
    record = json.loads(json.dumps(study_report.as_json(SMALL, runs, seeds=3)))
    head = "| Arm | Settings | Seeds | Accuracy, % | Against | Difference, points | 95% interval | Verdict | Images/s |"
    assert study_report.table(record).splitlines() == [
        head,
        "|" + " --- |" * 9,
        "| baseline |  | 3 | 81.00 +- 1.00 |  |  |  |  | 101 |",
        "| mixup | mixup=0.2 | 3 | 83.00 +- 2.00 | baseline | +2.00 | -0.48 to +4.48 | no difference seen | 101 |",
        "| ema |  | 1 | 80.00 | baseline | +0.00 |  | one seed: no interval | 100 |",
    ]
    assert record["rows"][1]["differences"] == [1.0, 2.0, 3.0]


PAGES = {
    "2026-11-25-parity-cpu": ("parity", "parity.md"),
    "2026-11-28-ablation-large-batch-cpu": ("large-batch", "kfac.md"),
}


def _record(name, study):
    runs = []
    for run in json.loads((RESULTS / f"{name}.json").read_text())["runs"]:
        run.pop("seconds", None)
        runs.append(Run(**run))
    return study_report.as_json(STUDIES[study], runs)


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_the_runs_of_the_records(name):
    study, page = PAGES[name]
    assert study_report.table(_record(name, study)) in (ROOT / "docs" / page).read_text()


def test_the_page_of_recipes_has_all_differences_of_both_records():
    columns = {}
    for study in ("digits", "textures"):
        for row in _record(f"2026-11-26-ablation-{study}-cpu", study)["rows"][1:]:
            cell = f"{row['difference']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"
            cell += "" if row["verdict"] == "no difference seen" else f" {row['verdict']}"
            columns.setdefault(row["arm"], {})[study] = cell
    lines = [f"| {arm} | {cells.get('digits', '')} | {cells['textures']} |" for arm, cells in columns.items()]
    assert "\n".join(lines) in (ROOT / "docs" / "recipes.md").read_text()


# The command


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with empty folders in the place of images."""
    monkeypatch.chdir(tmp_path)
    for images in ("digits", "textures", "textures-small"):
        for part in ("train", "val"):
            (tmp_path / "data" / images / part).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def trained(monkeypatch):
    """Calls of what would train; each arm has an accuracy of its own, and each seed is 0.25 points better."""
    calls = []

    def run_all(study, todo, **arguments):
        calls.append((study, todo, arguments))
        return [
            Run(arm.name, seed, (90.0 + len(arm.name) + seed / 4,), skipped=1, loss_scale=8.0) for arm, seed in todo
        ]

    monkeypatch.setattr(study_runs, "run_all", run_all)
    return calls


def test_arms_are_trained_seed_by_seed_and_recorded(folder, trained, capsys):
    options = ["--arms", "ema,mixup", "--seeds", "2", "--set", "training.epochs=3", "--jobs", "1"]
    benchmark.main(["ablation", *options, "--json", "a.json"])
    ((study, todo, arguments),) = trained
    arms = ["baseline", "mixup", "ema"]
    assert [(arm.name, seed) for arm, seed in todo] == [(name, seed) for seed in (0, 1) for name in arms]
    assert study.settings == (*ABLATIONS["digits"].settings, "training.epochs=3")
    assert {name: str(value) for name, value in arguments.items()} == {
        "jobs": "1",
        "epochs": "3",
        "out": "results/ablation-digits",
    }
    record = json.loads((folder / "a.json").read_text())
    assert study_report.table(record) in capsys.readouterr().out
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu", "settings", "runs"} <= record.keys()
    assert [(row["arm"], row["mean"]) for row in record["rows"]] == [
        ("baseline", 98.125),
        ("mixup", 95.125),
        ("ema", 93.125),
    ]


def test_controls_have_as_many_seeds_as_they_need(folder, trained):
    benchmark.main(["parity", "--seeds", "7"])
    ((_, todo, _),) = trained
    seeds = {name: sum(arm.name == name for arm, _ in todo) for name in ("fp32", "fp16", "small-scale", "low-lr")}
    assert seeds == {"fp32": 7, "fp16": 7, "small-scale": 5, "low-lr": 5}


BAD_ARGUMENTS = [
    (("ablation", "--data", "cats"), "error: argument --data: invalid choice: 'cats'"),
    (("ablation", "--arms", "mixup,magic"), "benchmark: --arms magic: no such arm; allowed: baseline, "),
    (("ablation", "--arms", "progressive"), "benchmark: --arms progressive: no such arm; allowed: "),  # of textures
    (("parity", "--seeds", "0"), "error: argument --seeds: found '0'; wanted: a whole number from 1 on"),
    (("parity", "--set", "model.arch=resnet9"), "benchmark: --set: "),
    (("parity", "--config", "missing.yaml"), "benchmark: missing.yaml: "),
    (("ablation", "--set", "training.epochs=2", "--data", "textures"), "benchmark: arm progressive: "),
]


@pytest.mark.parametrize(("arguments", "error"), BAD_ARGUMENTS)
@pytest.mark.usefixtures("folder")
def test_bad_arguments_end_with_one_line(arguments, error, trained, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark.main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith(error)
    assert not out
    assert not trained


@pytest.mark.parametrize("name", STUDIES)
def test_missing_images_are_named_with_the_command_that_makes_them(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentsError, match="train is no folder; this makes it: python scripts/make_"):
        STUDIES[name].checked_epochs(MODELS)


ENDS = [
    (KeyboardInterrupt(), 130, "interrupted; the same command goes on from the last snapshots in runs"),
    (StudyError("ema-0 ended with code 1"), 1, "ema-0 ended with code 1"),
]


@pytest.mark.parametrize(("error", "status", "message"), ENDS)
@pytest.mark.usefixtures("folder")
def test_study_that_does_not_end_says_so(error, status, message, capsys, monkeypatch):
    def run_all(study, todo, **_):
        raise error

    monkeypatch.setattr(study_runs, "run_all", run_all)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["ablation", "--arms", "ema", "--out", "runs"])
    assert ended.value.code == status
    assert capsys.readouterr().err.splitlines() == [f"benchmark: {message}"]


# Runs that are there


def test_runs_of_another_study_are_not_taken(tmp_path):
    (config := tmp_path / "a.yaml").write_text("model: {}\n")

    def check(*arms, settings=()):
        study_runs._check_same_study(tmp_path, Study(config, None, arms, settings))

    mixup = Arm("mixup", ("training.mixup=0.2",))
    check(mixup)
    check(Arm("ema", ("training.ema_decay=0.9",)))
    check(mixup)
    message = "holds runs of another config, or with other settings; give another --out"
    for arms, settings in (((Arm("mixup", ("training.mixup=0.1",)),), ()), ((mixup,), ("training.epochs=3",))):
        with pytest.raises(StudyError, match=message):
            check(*arms, settings=settings)
    config.write_text("model: {arch: resnet8}\n")
    with pytest.raises(StudyError, match=message):
        check(mixup)


def _wait_until_nobody_is_at_work(out):
    with open(out / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    make = [sys.executable, ROOT / "scripts" / "make_textures.py", "--out", "data/textures", "--images", "100"]
    subprocess.run(make, check=True, capture_output=True)
    return tmp_path


OPTIONS = ["parity", "--seeds", "1", "--jobs", "1", "--out", "runs"]
for setting in (
    *("training.device=cpu", "training.epochs=2", "training.batch_size=16", "loss_scale.init_scale=1024"),
    *("optimizer.lr=0.05", "model.arch=resnet8", "data.size=16", "data.resize=16", "schedule.warmup_epochs=0"),
):
    OPTIONS += ["--set", setting]


@pytest.mark.long
def test_study_with_one_seed_is_killed_and_goes_on(pictures, capsys):
    """What was finished is kept, bit for bit; what is said follows from the runs' own logs."""
    out = pictures / "runs"
    options = [*OPTIONS, "--json", "study.json"]
    command = [sys.executable, ROOT / "scripts" / "benchmark.py", *options]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (out / "fp32-0" / "model.npz").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (pictures / "study.json").exists()
    _wait_until_nobody_is_at_work(out)  # a run that was under way has finished, or was killed
    kept = {path: path.stat().st_mtime_ns for path in out.glob("fp32-0/*")}

    benchmark.main(options)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    record = json.loads((pictures / "study.json").read_text())
    assert study_report.table(record) in capsys.readouterr().out
    for run in record["runs"]:
        lines = (out / f"{run['arm']}-0" / "log.jsonl").read_text().splitlines()
        accuracies = [100 * json.loads(line)["validation/main/accuracy"] for line in lines]
        assert run["accuracies"] == pytest.approx(accuracies, abs=1e-4)
        assert len(accuracies) == 2
        assert run["rate"] > 0
    means = {row["arm"]: row["mean"] for row in record["rows"]}
    assert set(means) == {arm.name for arm in PARITY.arms}
    assert record["rows"][1]["differences"] == pytest.approx([means["fp16"] - means["fp32"]])

    weights = {arm: dict(np.load(out / f"{arm}-0" / "model.npz")) for arm in means}
    for arm, arrays in weights.items():  # in FP32; only without masters they are FP16 numbers throughout
        weight = arrays["layer1/0/conv1/W"]
        assert weight.dtype == np.float32
        rounded = np.array_equal(weight, weight.astype(np.float16).astype(np.float32))
        assert rounded == (arm == "low-lr-no-masters")
    assert 0 < np.abs(weights["fp16"]["fc/W"] - weights["fp32"]["fc/W"]).max() < 0.5


def test_failed_run_is_named_with_its_last_words(pictures, capsys):
    def line():
        with pytest.raises(SystemExit) as ended:
            benchmark.main([*OPTIONS, "--arms", "fp32", "--set", "training.batch_size=1000"])
        assert ended.value.code == 1
        return capsys.readouterr().err.splitlines()[-1]

    last = line()
    assert last.startswith("benchmark: fp32-0 ended with code 2: error: ")
    assert "1000" in last
    assert last.endswith("(all in runs/fp32-0.txt)")
    with open(pictures / "runs" / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert line() == "benchmark: runs: a study, or a run of one that was killed, is at work there"
