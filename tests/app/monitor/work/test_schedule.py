"""The task schedule: the rates of the log, where they bend, and what cannot be planned."""

import itertools
import math

import pytest

from mixprec.app import config as configs
from mixprec.app.parts.rates import rates_of
from mixprec.data.loaders.epochs import Epochs
from tests.app.monitor.work.asking import answer, error

RUN = ("training.batch_size=10", "data.last_batch=partial")


@pytest.mark.slow
def test_the_last_rate_is_that_of_the_log(digits):
    folder, entry = digits
    found = answer("schedule", config=str(folder / "config.yaml"))
    assert found["points"][-1][1:] == [entry["iteration"], entry["lr"]]
    assert (found["steps_per_epoch"], found["iterations"]) == (entry["iteration"], entry["iteration"])
    assert found["points"][0][:2] == [0, 1]
    assert found["text"] == "0.05 at its peak, with 64 images in a step"


def test_every_step_of_a_short_run():
    """Nine batches in a step, the last of which has six."""
    steps = [*RUN, "training.epochs=4", "training.accumulation_steps=9", "optimizer.base_batch_size=30"]
    found = answer("schedule", config="digits.yaml", overrides=steps, images=240)
    assert (found["steps_per_epoch"], found["iterations"], found["images_per_step"]) == (3, 12, 90)
    assert found["peak"] == pytest.approx(0.15)
    epochs = [point[0] for point in found["points"]]
    assert epochs == pytest.approx([epoch + start / 240 for epoch in range(4) for start in (0, 90, 180)])
    rising, falling = found["points"][:3], found["points"][3:]
    assert [rate for _, _, rate in rising] == pytest.approx([0.15 * min(1, epoch + 1 / 3) for epoch in epochs[:3]])
    assert [rate for _, _, rate in falling] == pytest.approx(
        [0.075 * (1 + math.cos(math.pi * (epoch - 1) / 3)) for epoch in epochs[3:]]
    )


@pytest.mark.parametrize(
    ("kind", "last_batch"), [("constant", "pad"), ("cosine", "drop"), ("step", "partial"), ("poly", "partial")]
)
def test_a_long_run_has_its_edges(kind, last_batch):
    overrides = [
        *("training.epochs=90", "training.batch_size=32", f"data.last_batch={last_batch}"),
        *(f"schedule.kind={kind}", "schedule.warmup_epochs=5"),
        *(["schedule.milestones=[30, 60, 80]"] if kind == "step" else []),
    ]
    found = answer("schedule", config="digits.yaml", overrides=overrides, images=100_001)
    points, total = found["points"], found["iterations"]
    assert len(points) <= 500
    assert [points[0][1], points[-1][1]] == [1, total]
    numbers = [number for _, number, _ in points]
    assert numbers == sorted(set(numbers))
    config = configs.load(*_loaded(overrides))
    rates = rates_of(config, 100_001)
    epochs = Epochs(images=100_001, batch_size=32, last_batch=last_batch)
    for start, number, rate in points:
        assert start == epochs.detail(number - 1)
        assert rate == rates.at(start)
    if kind == "step":
        for milestone in (30, 60, 80):
            (before, after) = next(
                (one, two) for one, two in itertools.pairwise(points) if one[0] < milestone <= two[0]
            )
            assert (after[1], after[2]) == (before[1] + 1, pytest.approx(before[2] / 10))
    assert max(rate for _, _, rate in points) == pytest.approx(found["peak"], rel=1e-3)


def _loaded(overrides):
    from mixprec.recipes import config_path

    return config_path("digits.yaml"), overrides


def test_the_most_milestones_there_may_be():
    many = f"schedule.milestones={list(range(1, 1025))}"
    steps = [*RUN, "training.epochs=2000", "schedule.kind=step", many]
    assert len(answer("schedule", config="digits.yaml", overrides=steps, images=1000)["points"]) <= 500


def test_synthetic_images_are_counted():
    overrides = ["data.format=synthetic", "data.train=null", "data.val=null", "data.synthetic_images=160"]
    overrides.append("snapshot.best=false")
    assert answer("schedule", config="digits.yaml", overrides=overrides)["images"] == 160


BAD_REQUESTS = [
    ({}, "no such file or folder; data.train says where the images are; 'images' may say how many"),
    ({"images": 15}, "'images' is 15; wanted: at least training.batch_size * ranks, 16"),
    ({"images": 0}, "'images' is 0; wanted: a whole number from 1"),
    ({"overrides": ["training.epochs=x"]}, "--set: 'training.epochs' is 'x'"),
    ({"config": "nowhere.yaml"}, "nowhere.yaml: no such file; mixprec comes with digits.yaml"),
    ({"overrides": ["model.arch=resnet9"]}, "'model.arch' is 'resnet9'"),
]


@pytest.mark.parametrize(("request_", "message"), BAD_REQUESTS)
def test_bad_requests_are_one_line(request_, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in error("schedule", **{"config": "digits.yaml", **request_})
