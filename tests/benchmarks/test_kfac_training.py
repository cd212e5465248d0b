"""scripts/benchmark.py kfac: what is chosen and reported, and a whole study in small."""

import concurrent.futures
import json
import math

import numpy as np
import pytest

from benchmarks.kfac_training import compared_arms, image_sets, kfac_command, training_study
from benchmarks.kfac_training.compared_arms import KFAC, LARS, SGD, Arm
from benchmarks.kfac_training.training_run import Run, train
from scripts import benchmark
from scripts.datasets import digits, textures

pytestmark = pytest.mark.slow

GRID = {SGD: ((0.1, 0.3),), KFAC: ((0.1,), (0.1,))}
PLAN = training_study.Plan(GRID, ("float32",), (100, 101), (0, 1, 2), (0.5, 0.7, 0.9))


def _run(arm=SGD, settings=None, seed=0, accuracies=(0.2, 0.6, 0.7, 0.95), milliseconds=2.0):
    seconds = [float(epoch) for epoch in range(1, len(accuracies) + 1)]
    settings = {"lr": 0.1} if settings is None else settings
    return Run(arm, settings, "float32", seed, list(accuracies), seconds, milliseconds, 1, 1.0)


@pytest.fixture
def small(monkeypatch):
    """A study of 60 digits in two steps an epoch, with two settings of SGD and one of each other optimizer."""
    images = digits.named_images()[::30]
    monkeypatch.setattr(digits, "named_images", lambda: images)
    default = kfac_command._DEFAULTS["digits"]
    grid = {SGD: ((0.1, 0.3),), LARS: ((1.0,), (0.03,)), KFAC: ((0.1,), (0.1,))}
    default = kfac_command._Default(24, 2, 2, default.dtypes, grid, (100,), (0.1, 0.2, 0.99))
    monkeypatch.setitem(kfac_command._DEFAULTS, "digits", default)


@pytest.mark.parametrize(
    ("accuracy", "epochs", "seconds"), [(0.1, 1, 1.0), (0.6, 2, 2.0), (0.65, 3, 3.0), (0.96, math.inf, math.inf)]
)
def test_epochs_to_an_accuracy(accuracy, epochs, seconds):
    assert _run().epochs_to(accuracy) == epochs
    assert _run().seconds_to(accuracy) == seconds


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([3, 1, 2], 2), ([1, 2], 1.5), ([1, math.inf, 2], 2), ([1, math.inf], math.inf), ([math.inf] * 2, math.inf)],
)
def test_median_with_infinity(numbers, expected):
    assert training_study.median(numbers) == expected


@pytest.mark.parametrize(
    ("low", "high", "chosen"),
    [
        ((0.2, 0.7, 0.7), (0.7, 0.7, 0.7), 0.3),  # fewer epochs to the second accuracy
        ((0.7, 0.7, 0.9), (0.7, 0.9, 0.9), 0.3),  # as many, and fewer to the third one
        ((0.7, 0.9, 0.9), (0.7, 0.9, 0.95), 0.3),  # as many to both, and a higher one at the end
        ((0.2, 0.7, 0.7), (0.6, 0.6, 0.6), 0.1),  # the other one never gets there
        ((0.1, 0.1, 0.2), (0.1, 0.1, 0.3), 0.3),  # neither does
    ],
)
def test_settings_are_chosen_by_epochs(low, high, chosen):
    runs = [
        _run(settings={"lr": lr}, accuracies=found, seed=seed)
        for seed in PLAN.tuning_seeds
        for lr, found in ((0.1, low), (0.3, high))
    ]
    other = _run(KFAC, {"lr": 0.1, "damping": 0.1}, accuracies=(0.99,))
    assert training_study.best(PLAN, [*runs, other], SGD) == Arm(SGD, (chosen,))


def test_reported_seeds_are_others_than_those_of_the_choice():
    calls = []

    def one(arm, dtype, seed):
        calls.append((arm, dtype, seed))
        return _run(arm.name, arm.settings, seed, accuracies=(0.1, 0.9) if arm.lr == 0.3 else (0.1, 0.1))

    tuning, reported, complete = training_study.run(PLAN, one, lambda: True)
    assert complete
    assert len(calls) == PLAN.trainings == len(tuning) + len(reported)
    arms = [Arm(SGD, (0.1,)), Arm(SGD, (0.3,)), Arm(KFAC, (0.1, 0.1))]
    assert calls[:6] == [(arm, "float32", seed) for seed in (100, 101) for arm in arms]
    assert calls[6:] == [(arm, "float32", seed) for seed in (0, 1, 2) for arm in arms[1:]]
    record = training_study.as_json(PLAN, tuning, reported, complete)
    sgd, kfac = record["rows"]
    assert (sgd["arm"], sgd["settings"], sgd["seeds"]) == (SGD, {"lr": 0.3}, [0, 1, 2])
    assert sgd["epochs"] == {"0.5": [2, 2, 2], "0.7": [2, 2, 2], "0.9": [2, 2, 2]}
    assert (sgd["median_seconds"], sgd["milliseconds"], sgd["median_accuracy"], sgd["skipped"]) == (2.0, 2.0, 0.9, 3)
    assert kfac["median_epochs"] == {"0.5": None, "0.7": None, "0.9": None}
    lines = training_study.table(json.loads(json.dumps(record))).splitlines()
    assert lines[2] == "| SGD, float32 | lr 0.3 | 2 (2 2 2) | 2 (2 2 2) | 2 (2 2 2) | 2.0 | 2.0 | 90.0 |"
    assert lines[3].startswith("| K-FAC, float32 | lr 0.1, damping 0.1 | - (- - -) |")
    assert len(lines) == 4


@pytest.mark.parametrize("trainings", range(12))
def test_no_training_begins_when_the_time_is_over(trainings):
    left = iter([True] * trainings)
    tuning, reported, complete = training_study.run(
        PLAN, lambda arm, dtype, seed: _run(arm.name, arm.settings, seed), lambda: next(left, False)
    )
    assert (len(tuning), len(reported), complete) == (min(trainings, 6), max(trainings - 6, 0), False)
    assert "The time was over" in training_study.table(training_study.as_json(PLAN, tuning, reported, complete))


def test_digits_are_those_of_the_script():
    images, (x, y) = image_sets.digit_images((16, 32, 32)), digits._load()
    assert images.train_x.shape == (1442, 1, 8, 8)
    assert images.test_x.shape == (355, 1, 8, 8)
    assert np.concatenate([images.train_x, images.test_x]).dtype == np.float32
    assert images.train_x.mean(dtype=np.float64) == pytest.approx(0, abs=1e-4)
    assert images.train_x.std(dtype=np.float64) == pytest.approx(1, abs=1e-4)
    assert np.bincount(images.test_y).tolist() == [len(x[y == digit]) // 5 for digit in range(10)]
    low, high = images.train_x.min(), images.train_x.max()
    levels = np.rint((np.concatenate([images.train_x, images.test_x]) - low) / (high - low) * 16).astype(np.uint8)
    labels = np.concatenate([images.train_y, images.test_y])
    assert sorted(zip(levels.reshape(-1, 64).tolist(), labels.tolist(), strict=True)) == sorted(
        zip(x.reshape(-1, 64).tolist(), y.tolist(), strict=True)
    )


def test_textures_are_those_of_the_script(monkeypatch):
    pool = concurrent.futures.ThreadPoolExecutor  # processes take seconds to start
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", lambda *_, **__: pool(1))
    images = image_sets.texture_images(40)
    held = [index for index in range(40) if textures._path(index, 40).startswith("val/")]
    assert images.test_y.tolist() == [index % 10 for index in held]
    assert images.train_x.shape == (40 - len(held), 3, 48, 48)
    mean = textures.picture(held[0], 0).mean()
    assert images.test_x[0].mean() * 58 + 118 == pytest.approx(mean, abs=20)  # the middle of it
    assert images.network()(images.test_x[:2]).shape == (2, 10)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("arm", [Arm(SGD, (0.1,)), Arm(LARS, (1.0, 0.03)), Arm(KFAC, (0.1, 0.1))])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_seed_gives_the_same_training_again(arm, dtype):
    images = image_sets.digit_images((16, 32, 32))
    runs = [train(images, arm, dtype, seed, batch=24, epochs=3) for seed in (5, 5)]
    assert runs[0].accuracies == runs[1].accuracies
    assert runs[0].seconds == sorted(runs[0].seconds)
    assert (runs[0].arm, runs[0].settings, runs[0].dtype, runs[0].seed) == (arm.name, arm.settings, dtype, 5)
    assert (runs[0].loss_scale == 1) == (dtype == "float32")


@pytest.mark.usefixtures("small")
def test_a_study_prints_a_table_and_writes_the_same_numbers(tmp_path, capsys):
    path = tmp_path / "kfac.json"
    benchmark.main(["kfac", "--json", str(path)])
    printed, record = capsys.readouterr().out, json.loads(path.read_text())
    assert training_study.table(record) in printed
    assert {"date", "numpy", "chainer", "mixprec", "commit", "cpu"} <= record.keys()
    assert record["settings"]["batch"] == 24
    assert record["complete"]
    assert [(row["dtype"], row["arm"]) for row in record["rows"]] == [
        (dtype, arm) for dtype in ("float16", "float32") for arm in (SGD, LARS, KFAC)
    ]
    assert all(row["seeds"] == [0, 1] and row["milliseconds"] > 0 for row in record["rows"])
    assert (len(record["tuning"]), len(record["runs"])) == (8, 12)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--data", "cats"), "error: argument --data: invalid choice: 'cats'"),
        (("--batch", "0"), "error: argument --batch: found '0', expected an integer of at least 1"),
        (("--batch", "1443"), "benchmark: --batch 1443: must be at most 1442"),
        (("--seeds", "101"), "error: argument --seeds: found '101', expected at most 100"),
        (("--dtype", "bfloat16"), "error: argument --dtype: invalid choice: 'bfloat16'"),
        (("--minutes", "-1"), "error: argument --minutes: found '-1', expected a finite number above 0"),
    ],
)
def test_bad_arguments_end_with_one_line(arguments, error, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["kfac", *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(error)


def test_grids_have_no_seed_and_no_setting_twice():
    for default in kfac_command._DEFAULTS.values():
        arms = compared_arms.arms_of(default.grid)
        assert len(set(arms)) == len(arms)
        assert min(default.tuning_seeds) >= kfac_command._MOST_SEEDS
