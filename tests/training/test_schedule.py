"""The learning rate over the epochs, beside torch's schedulers and closed forms; and the linear scaling rule."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixprec.app import config as configs
from mixprec.app.parts.rates import described_rate, images_per_step, rates_of, scaled_rate
from mixprec.app.parts.stages import epochs_of, steps_of
from mixprec.training.schedule import Rates, Schedule

_STEPS = 8  # in an epoch: a power of two, so that epochs are exact


def _rates(kind="cosine", peak=0.8, epochs=90, iteration_epochs=1 / _STEPS, **keys):
    settings = configs.run.Schedule(kind=kind, **keys)
    return Rates(settings=settings, peak=peak, epochs=epochs, stages=((epochs, 1.0, iteration_epochs),))


def _torch_module():
    return pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")


def _torch(build, steps, peak=0.8):
    """Returns the rates of so many steps of a scheduler of torch."""
    torch = _torch_module()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    scheduler = build(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


_SCHEDULERS = {
    "cosine": (
        {"epochs": 12, "end_lr": 0.05},
        lambda optimizer: _torch_module().optim.lr_scheduler.CosineAnnealingLR(optimizer, 12 * _STEPS, eta_min=0.05),
    ),
    "step": (
        {"epochs": 12, "milestones": (3.0, 6.5, 10.0), "gamma": 0.2},
        lambda optimizer: _torch_module().optim.lr_scheduler.MultiStepLR(
            optimizer, [3 * _STEPS, 6.5 * _STEPS, 10 * _STEPS], gamma=0.2
        ),
    ),
    "poly": (
        {"epochs": 12, "power": 2.0},
        lambda optimizer: _torch_module().optim.lr_scheduler.PolynomialLR(optimizer, 12 * _STEPS, power=2.0),
    ),
    "constant": ({"epochs": 12}, lambda optimizer: _torch_module().optim.lr_scheduler.ConstantLR(optimizer, factor=1)),
}


@pytest.mark.parametrize("kind", _SCHEDULERS)
def test_a_schedule_is_that_of_torch(kind):
    keywords, build = _SCHEDULERS[kind]
    rates = _rates(kind, **keywords)
    expected = _torch(build, 12 * _STEPS)
    assert [rates.at(step / _STEPS) for step in range(12 * _STEPS)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", _SCHEDULERS)
def test_a_warm_up_is_that_of_torch_and_the_schedule_begins_after_it(kind):
    """LinearLR from 1/n to 1 in n - 1 steps: the last of the n steps of the warm-up has the peak, as Goyal et al."""
    keywords, _ = _SCHEDULERS[kind]
    warm = 2 * _STEPS
    rates = _rates(kind, warmup_epochs=2.0, **keywords)
    linear = _torch(
        lambda optimizer: _torch_module().optim.lr_scheduler.LinearLR(
            optimizer, start_factor=1 / warm, total_iters=warm - 1
        ),
        warm,
    )
    assert [rates.at(step / _STEPS) for step in range(warm)] == pytest.approx(linear, rel=1e-9)
    assert rates.at(2.0) == pytest.approx(0.8)


@given(
    kind=st.sampled_from(sorted(_SCHEDULERS)),
    peak=st.floats(1e-3, 30),
    share=st.floats(0, 1),
    epochs=st.integers(1, 300),
    warm=st.floats(0, 0.99),
    milestones=st.lists(st.floats(0, 300), max_size=4, unique=True).map(sorted).map(tuple),
    power=st.floats(0.5, 4),
)
def test_rates_stay_between_end_and_peak_and_fall_after_the_warm_up(kind, peak, share, epochs, warm, milestones, power):
    end = share * peak if kind in ("cosine", "poly") else 0.0
    keys = {"warmup_epochs": warm * epochs, "milestones": milestones if kind == "step" else (), "power": power}
    rates = _rates(kind, peak, epochs, 0.01, end_lr=end, **keys)
    places = [epochs * place / 50 for place in range(51)]
    found = [rates.at(place) for place in places]
    assert all(math.isfinite(rate) and 0 <= rate <= peak * (1 + 1e-12) for rate in found)
    after = [rate for place, rate in zip(places, found, strict=True) if place >= warm * epochs]
    assert after == sorted(after, reverse=True)
    before = [rate for place, rate in zip(places, found, strict=True) if place < warm * epochs]
    assert before == sorted(before)
    assert min(after) >= end * (1 - 1e-12)


def test_the_extension_sets_the_rate_of_the_next_iteration_at_the_start_and_after_each():
    class Optimizer:
        alpha = None

    class Trainer:
        class updater:
            epoch_detail = 0.0

    optimizer = Optimizer()
    schedule = Schedule(optimizer, "alpha", _rates("step", milestones=(1.0,)).at)
    schedule.initialize(Trainer)
    assert optimizer.alpha == 0.8
    Trainer.updater.epoch_detail = 1.0
    schedule(Trainer)
    assert optimizer.alpha == pytest.approx(0.08)
    assert schedule.serialize(None) is None  # nothing is saved


# From a config


def _config(tmp_path, *overrides):
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: {arch: a, classes: 2}\ndata: {train: t, val: v}\noptimizer: {lr: 0.25}\n"
        "training: {batch_size: 32, epochs: 10}\n"
    )
    return configs.load(path, overrides)


RATES = [
    ([], 1, 32, 0.25),
    (["training.accumulation_steps=4"], 2, 256, 0.25),
    (["optimizer.base_batch_size=256"], 1, 32, 0.25 / 8),
    (["optimizer.base_batch_size=256", "training.accumulation_steps=4"], 1, 128, 0.125),
    (["optimizer.base_batch_size=256", "training.accumulation_steps=4"], 8, 1024, 1.0),
]


@pytest.mark.parametrize(("overrides", "ranks", "images", "rate"), RATES)
def test_the_rate_is_scaled_with_the_images_of_a_step(tmp_path, overrides, ranks, images, rate):
    config = _config(tmp_path, "schedule.end_lr=0.01", *overrides)
    assert images_per_step(config, ranks) == images
    assert scaled_rate(config, 0.25, ranks) == rate
    rates = rates_of(config, 1000, ranks)
    assert (rates.peak, rates.at(10)) == (rate, pytest.approx(0.01 * rate / 0.25))


def test_every_key_of_the_schedule_arrives(tmp_path):
    config = _config(
        tmp_path,
        *("schedule.kind=step", "schedule.warmup_epochs=1.5", "schedule.milestones=[3, 6]", "schedule.gamma=0.5"),
        "schedule.power=3",
    )
    keys = {"warmup_epochs": 1.5, "milestones": (3.0, 6.0), "gamma": 0.5, "power": 3.0}
    assert rates_of(config, 1000) == _rates("step", 0.25, 10, 1 / 32, **keys)  # 31.25 batches


STEPS = [
    ([], 96, 1, 3),
    ([], 97, 1, 4),
    (["data.last_batch=drop"], 127, 1, 3),
    (["data.last_batch=pad"], 97, 1, 4),
    (["training.accumulation_steps=2"], 97, 1, 2),
    (["training.accumulation_steps=2"], 129, 1, 3),  # batches 2, 2, 1
    (["training.accumulation_steps=9"], 129, 1, 1),
    (["data.last_batch=drop"], 129, 2, 2),
]


@pytest.mark.parametrize(("overrides", "images", "ranks", "steps"), STEPS)
def test_the_number_of_steps_in_an_epoch(tmp_path, overrides, images, ranks, steps):
    assert steps_of(_config(tmp_path, *overrides), images, ranks).in_epoch(0) == steps


def test_the_rate_is_described_with_what_it_was_scaled_from(tmp_path):
    assert described_rate(_config(tmp_path)) == "0.25 at its peak, with 32 images in a step"
    scaled = _config(tmp_path, "optimizer.base_batch_size=256", "training.accumulation_steps=4")
    assert described_rate(scaled) == "0.125 at its peak, with 128 images in a step (0.25 * 128 / 256)"


def _timm(epoch, lr, start, end, epochs, warmup):
    """timm/scheduler/cosine_lr.py, CosineLRScheduler._get_lr, without warmup_prefix."""
    if epoch < warmup:
        return start + epoch * (lr - start) / warmup
    return end + 0.5 * (lr - end) * (1 + math.cos(math.pi * epoch / epochs))


def test_a_schedule_by_epochs_from_the_start_is_that_of_timm():
    keywords = {"end_lr": 1e-6, "epochs": 100, "warmup_epochs": 5.0, "warmup_start_lr": 1e-4, "decay_from": "start"}
    rates = _rates("cosine", peak=8e-3, by="epoch", **keywords)
    for epoch in range(100):
        expected = _timm(epoch, 8e-3, 1e-4, 1e-6, 100, 5)
        for step in (0, 1, 7):
            assert rates.at(epoch + step / 8) == pytest.approx(expected, rel=1e-12)
    values = [(0, 1e-4), (4, 6.42e-3), (5, 7.9507595e-3), (50, 4.0005e-3), (99, 2.973512e-6)]
    assert [rates.at(epoch) for epoch, _ in values] == pytest.approx([value for _, value in values], rel=1e-7)


def test_a_schedule_by_epochs_is_that_of_torchvision():
    """references/classification/train.py: SequentialLR of LinearLR and CosineAnnealingLR, a step an epoch."""

    def build(optimizer):
        of = _torch_module().optim.lr_scheduler
        warmup = of.LinearLR(optimizer, start_factor=0.01, total_iters=5)
        return of.SequentialLR(optimizer, [warmup, of.CosineAnnealingLR(optimizer, T_max=55)], milestones=[5])

    rates = _rates("cosine", peak=0.5, epochs=60, warmup_epochs=5.0, warmup_start_lr=0.005, by="epoch")
    assert [rates.at(epoch + 0.9) for epoch in range(60)] == pytest.approx(_torch(build, 60, peak=0.5), rel=1e-9)


def test_a_straight_rise_and_fall_is_that_of_ffcv():
    """ffcv-imagenet, train_imagenet.py: get_cyclic_lr at the epochs, np.interp over the iterations of each."""

    def get_cyclic_lr(epoch):
        return np.interp([epoch], [0, 2, 16], [1e-4 * 1.7, 1.7, 0])[0]

    rates = _rates("poly", peak=1.7, epochs=16, warmup_epochs=2.0, warmup_start_lr=1.7e-4, power=1.0)
    for epoch in range(16):
        expected = np.interp(np.arange(8), [0, 8], [get_cyclic_lr(epoch), get_cyclic_lr(epoch + 1)])
        assert [rates.at(epoch + step / 8) for step in range(8)] == pytest.approx(expected, rel=1e-12)


def test_the_rate_of_stages_is_described_as_that_of_the_last(tmp_path):
    settings = ("optimizer.base_batch_size=32", "progressive.until=[2]", "progressive.sizes=[16]")
    described = described_rate(_config(tmp_path, *settings, "progressive.batch_sizes=[128]"))
    assert described == "0.25 at its peak, with 32 images in a step of the last stage"


STAGES = ("progressive.until=[2, 5]", "progressive.sizes=[16, 24]", "progressive.batch_sizes=[64, 48]")


@given(st.integers(64, 300), st.sampled_from(["partial", "drop"]), st.integers(1, 3))
def test_steps_are_counted_through_all_stages(tmp_path_factory, images, last_batch, accumulated):
    """Against an iterator whose batches are counted one by one."""
    config = _config(
        tmp_path_factory.getbasetemp(),
        f"data.last_batch={last_batch}",
        f"training.accumulation_steps={accumulated}",
        *STAGES,
    )
    steps, epochs = steps_of(config, images), epochs_of(config, images)
    delivered = done = 0
    while epochs.at(delivered).epoch(delivered) < 7:
        if epochs.at(delivered).is_new(delivered):
            assert steps.until(epochs.at(delivered).epoch(delivered)) == done
        assert steps.start(done) == epochs.at(delivered).detail(delivered)
        for _ in range(accumulated):
            delivered += 1
            if epochs.at(delivered).is_new(delivered):
                break
        done += 1
    assert steps.until(7) == done


def test_the_rate_of_a_stage_is_scaled_with_its_batches(tmp_path):
    """The warm-up's steps are those of the first stage; without a base the rate stays."""
    warm = ("schedule.warmup_epochs=1", "data.last_batch=drop")
    scaled = rates_of(_config(tmp_path, "optimizer.base_batch_size=16", *warm, *STAGES), 640)
    plain, base = rates_of(_config(tmp_path, *warm, *STAGES), 640), rates_of(_config(tmp_path, *warm), 640)
    for epoch in (1, 1.95, 2, 4.9, 5, 9):
        factor = 64 / 16 if epoch < 2 else 48 / 16 if epoch < 5 else 32 / 16
        assert scaled.at(epoch) == pytest.approx(factor * base.at(epoch))
        assert plain.at(epoch) == base.at(epoch)
    assert plain.at(0) == pytest.approx(0.25 / 10)  # 10 steps of 64 images
    assert plain.at(0.9) == pytest.approx(0.25)
