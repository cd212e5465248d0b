"""The parity study: its statistics, its second control, and the whole of it with one seed on a few small pictures."""

import fcntl
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import mixprec
from benchmarks import parity_no_masters, parity_plot, parity_study
from benchmarks.parity_arms import ARMS, CONTROLS, FP16, FP32, LOW_LR, NO_MASTERS, SMALL_SCALE, command
from benchmarks.parity_runs import Run
from benchmarks.parity_statistics import MARGIN, compare, t_quantile
from models import MODELS
from scripts import parity as script
from tests import ROOT

pytestmark = pytest.mark.slow

RESULT = ROOT / "benchmarks" / "results" / "2026-11-25-parity-cpu.json"


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_t_quantile_is_scipys(freedom, level):
    assert t_quantile(freedom, level) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-9)


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
    assert found.mean == pytest.approx((own - other).mean(), abs=1e-9)
    assert found.low == pytest.approx(expected.low, rel=1e-7, abs=1e-7)
    assert found.high == pytest.approx(expected.high, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.1, -0.1, 0.2, 0.0], "within the margin"),
        ([0.0, 0.0], "within the margin"),
        ([1.0, 1.0], "within the margin"),
        ([1.5, -1.5, 0.0], "not decided"),  # a mean of 0 is not enough
        ([-0.9, -0.7, -1.1], "not decided"),
        ([-30.0, -31.0], "worse by more than the margin"),
        ([-1.1, -9.0], "not decided"),
        ([3.0, 3.1, 2.9], "better by more than the margin"),
        ([0.0], "one seed: no interval"),
    ],
)
def test_verdict_goes_by_the_whole_interval(differences, verdict):
    assert compare([70 + each for each in differences], [70.0] * len(differences)).verdict == verdict


def test_margin_is_the_one_that_was_fixed():
    assert MARGIN == 1.0


def test_arms_get_the_same_but_for_what_is_compared():
    commands = {arm: command(arm, 3, "a.yaml", ["training.epochs=1"], "out") for arm in ARMS}
    for arm, words in commands.items():
        assert words[-4:] == ["--out", "out", "--resume", "auto"]
        own = [word for setting in arm.settings for word in ("--set", setting)]
        script = ["train_imagenet.py"] if arm.masters else ["parity.py", "--without-masters"]
        assert [pathlib.Path(words[1]).name, *words[2 : 1 + len(script)]] == script
        settings = ["--set", "data.threads=1", "--set", "training.epochs=1", *own, "--set", "training.seed=3"]
        assert words[1 + len(script) : -4] == ["--config", "a.yaml", *settings]
    assert {SMALL_SCALE: FP16, NO_MASTERS: LOW_LR} == CONTROLS
    assert NO_MASTERS.settings == LOW_LR.settings
    assert "loss_scale.init_scale=0.000244140625" in SMALL_SCALE.settings


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
    for optimizer_class in (parity_no_masters.WithoutMasters, mixprec.MixedPrecisionOptimizer):
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


def test_without_masters_nothing_but_the_weights_is_known_after_a_step():
    model = Line()
    optimizer = parity_no_masters.WithoutMasters(optimizers.SGD(lr=1e-3)).setup(model)
    optimizer.update(model, np.ones(64, np.float32))
    master = optimizer.master(model.half)
    assert master.array.dtype == np.float32
    np.testing.assert_array_equal(master.array, model.half.array.astype(np.float32))


def test_optimizer_of_the_package_is_back_after_a_run_without_masters(capsys):
    original = mixprec.MixedPrecisionOptimizer
    assert parity_no_masters.main(["--config", "missing.yaml"], {"net": L.Linear}) == 2
    assert mixprec.MixedPrecisionOptimizer is original
    assert "missing.yaml" in capsys.readouterr().err


def _runs(**accuracies):
    return [
        Run(arm, seed, (10.0, accuracy), skipped=0, loss_scale=1.0, seconds=2.0)
        for arm, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


def test_table_says_what_is_in_the_json():
    runs = _runs(
        **{"fp32": (80.0, 82.0), "fp16": (80.2, 81.9), "small-scale": (10.0,)},
        **{"low-lr": (50.0, 52.0), "low-lr-no-masters": (20.0, 21.9)},
    )
    record = json.loads(json.dumps(parity_study.as_json(runs, seeds=2)))
    assert parity_study.table(record).splitlines() == [
        "| Arm | Seeds | Accuracy, % |",
        "|---|---|---|",
        "| FP32 | 2 | 81.00 +- 1.41 |",
        "| FP16 | 2 | 81.05 +- 1.20 |",
        "| FP16, loss scale 2^-12 | 1 | 10.00 |",
        f"| {LOW_LR.title} | 2 | 51.00 +- 1.41 |",
        f"| {NO_MASTERS.title} | 2 | 20.95 +- 1.34 |",
        "",
        "| Difference, points | Each seed | Mean | 95% interval | |",
        "|---|---|---|---|---|",
        "| FP16, against FP32 | +0.20, -0.10 | +0.05 | -1.86 to +1.96 | not decided |",
        "| FP16, loss scale 2^-12, against FP16 | -70.20 | -70.20 |  | one seed: no interval |",
        f"| {NO_MASTERS.title}, against {LOW_LR.title} | -30.00, -30.10 | -30.05 | -30.69 to -29.41 "
        "| worse by more than the margin |",
    ]


@pytest.mark.parametrize("seeds", [1, 5])
def test_plot_is_drawn_with_and_without_an_interval(tmp_path, seeds):
    rates = [80.0 + seed / 10 for seed in range(seeds)]
    record = parity_study.as_json(_runs(fp32=rates, fp16=rates[::-1]))
    parity_plot.save(tmp_path / "parity.png", record)
    assert (tmp_path / "parity.png").read_bytes()[1:4] == b"PNG"


def test_document_shows_the_numbers_of_the_json():
    record = json.loads(RESULT.read_text())
    assert parity_study.table(record) in (ROOT / "docs" / "parity.md").read_text()
    runs = [Run(**{**run, "accuracies": tuple(run["accuracies"])}) for run in record["runs"]]
    again = json.loads(json.dumps(parity_study.as_json(runs)))
    assert again["arms"] == record["arms"]
    assert again["comparisons"] == record["comparisons"]


def test_network_of_the_config_has_ten_layers_and_a_quarter_of_the_channels():
    """A 5x5 convolution, two 3x3 ones in each of four stages, three projections, a linear layer; two numbers a channel
    and batch normalization."""
    model = MODELS["resnet10_small"](10)
    convolutions = 25 * 3 * 16 + 9 * (2 * 16**2 + 16 * 32 + 32**2 + 32 * 64 + 64**2 + 64 * 128 + 128**2)
    projections = 16 * 32 + 32 * 64 + 64 * 128
    normalizations = 2 * (16 + 2 * (16 + 32 + 64 + 128) + 32 + 64 + 128)
    assert model.count_params() == convolutions + projections + normalizations + 128 * 10 + 10
    with chainer.using_config("train", False):
        assert model(np.zeros((2, 3, 64, 64), np.float32)).shape == (2, 10)
    last = MODELS["resnet10_small"](10, zero_init_residual=True).layer4[0].bn2
    assert not last.gamma.array.any()


# The study itself, small

SETTINGS = (
    *(
        "training.device=cpu",
        "training.epochs=2",
        "training.batch_size=16",
        "loss_scale.init_scale=1024",
        "optimizer.lr=0.05",
    ),
    *("model.arch=resnet8", "data.size=16", "data.resize=16", "data.train=set/train", "data.val=set/val"),
    "schedule.warmup_epochs=0",
)


OVERRIDES = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder of a study."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _wait_until_nobody_is_at_work(out):
    with open(out / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@pytest.fixture
def pictures(folder):
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    make = [sys.executable, ROOT / "scripts" / "make_textures.py", "--out", "set", "--images", "100"]
    subprocess.run(make, check=True, capture_output=True)
    return folder


@pytest.mark.long
def test_study_with_one_seed_is_killed_and_goes_on(pictures, capsys):
    """What was finished is kept, bit for bit; what is said follows from the runs' own logs."""
    out = pictures / "runs"
    options = ["--seeds", "1", "--jobs", "1", "--out", "runs", "--json", "study.json"]
    command = [sys.executable, ROOT / "scripts" / "parity.py", *OVERRIDES, *options]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (out / "fp32-0" / "model.npz").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (pictures / "study.json").exists()
    _wait_until_nobody_is_at_work(out)  # a run that was under way has finished, or was killed
    kept = {path: path.stat().st_mtime_ns for path in out.glob("fp32-0/*")}

    assert script.main([*OVERRIDES, *options, "--plot", "study.png"]) == 0
    stdout = capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    record = json.loads((pictures / "study.json").read_text())
    assert stdout.strip() == parity_study.table(record)
    assert (pictures / "study.png").exists()

    assert {(run["arm"], run["seed"]) for run in record["runs"]} == {(arm.name, 0) for arm in ARMS}
    finals = {}
    for run in record["runs"]:
        lines = (out / f"{run['arm']}-0" / "log.jsonl").read_text().splitlines()
        accuracies = [100 * json.loads(line)["validation/main/accuracy"] for line in lines]
        assert run["accuracies"] == pytest.approx(accuracies, abs=1e-4)
        assert len(accuracies) == 2
        finals[run["arm"]] = run["accuracies"][-1]
    parities = {each["arm"]: each for each in record["comparisons"]}
    assert parities["fp16"]["differences"] == pytest.approx([finals["fp16"] - finals["fp32"]])
    assert parities["fp16"]["verdict"] == "one seed: no interval"
    assert record["settings"]["margin"] == 1.0
    assert record["commit"] is None or len(record["commit"]) >= 12
    for arm in record["arms"]:
        assert arm["mean"] == pytest.approx(statistics.fmean([finals[arm["name"]]]))
        assert arm["sd"] is None

    weights = {arm: dict(np.load(out / f"{arm.name}-0" / "model.npz")) for arm in ARMS}
    _check_that_arms_are_what_they_are_called(weights)


def _check_that_arms_are_what_they_are_called(weights):
    """Of what is saved, in FP32, only the weights without masters are FP16 numbers throughout."""
    for arm, arrays in weights.items():
        weight = arrays["layer1/0/conv1/W"]
        assert weight.dtype == np.float32
        assert (arm == NO_MASTERS) == np.array_equal(weight, weight.astype(np.float16).astype(np.float32))
    different = [np.abs(weights[FP16][name] - weights[FP32][name]).max() for name in ("fc/W", "conv1/W")]
    assert all(0 < difference < 0.5 for difference in different)


def test_failed_run_is_named_with_its_last_words(pictures, capsys):
    out = pictures / "runs"
    own = ("--set", "training.batch_size=1000", "--seeds", "1", "--control-seeds", "1", "--out", "runs")
    assert script.main([*OVERRIDES, *own]) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    last = stderr.splitlines()[-1]
    assert last.startswith("error: fp")
    assert "ended with code 2: error: " in last
    assert "1000" in last
    assert "(all in runs/fp" in last

    out.joinpath("study.json").write_text(json.dumps({"config (SHA-256)": "0", "settings": []}))
    assert script.main([*OVERRIDES, "--out", "runs"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: runs: holds runs of another config, or with other settings; give another --out"
    )
    with open(out / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert script.main([*OVERRIDES, "--out", "runs"]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            "error: runs: a study, or a run of one that was killed, is at work there"
        )


def test_bad_arguments_end_before_anything_is_written(folder, capsys):
    for arguments, message in (
        (["--seeds", "1", "--control-seeds", "2"], "error: --control-seeds 2: at most --seeds, 1"),
        (["--set", "model.arch=resnet9"], "model.arch"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ):
        assert script.main([*OVERRIDES, *arguments]) == 2
        stdout, stderr = capsys.readouterr()
        assert stdout == ""
        assert message in stderr.splitlines()[-1]
    assert {path.name for path in folder.iterdir()} <= {"cache"}  # matplotlib lists fonts there
