"""The dry run: memory of real steps, time by a clock of our own, and what does not fit."""

import contextlib
import dataclasses
import os
import re
import sys
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
import yaml

from mixprec.app import config as configs
from mixprec.app.commands import train as command
from mixprec.app.parts import devices, estimate, kept_activations
from mixprec.app.parts.model import build_model
from mixprec.app.run import needs, timing
from mixprec.distributed.processes import Alone
from mixprec.training.plots import Plots
from models import MODELS
from tests.cases import first

SECTIONS = {
    "model": {"arch": "tiny", "classes": 10},
    "data": {"format": "synthetic", "synthetic_images": 70, "size": 32, "resize": 2000, "prefetch": 1},
    "optimizer": {"lr": 0.01},
    "training": {"batch_size": 32, "epochs": 2, "device": "cpu"},
    "snapshot": {"best": False},
}


class Tiny(chainer.Chain):
    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, nobias=True)
            self.linear = L.Linear(4, classes)

    def forward(self, x):
        h = F.relu(self.conv(x))
        return self.linear(F.average_pooling_2d(h, h.shape[2:]))


@pytest.fixture
def config_of(tmp_path, monkeypatch):
    """Writes a config file with these keys into an empty working directory, and loads it."""
    monkeypatch.chdir(tmp_path)

    def config_of(**settings):
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(SECTIONS))
        return configs.load("c.yaml", [f"{key.replace('__', '.')}={value}" for key, value in settings.items()])

    return config_of


def _guess(config, network=Tiny, device=None, ranks=None):
    model, optimizer, report = build_model(config, network, "@numpy")
    if device is not None:
        model._device = device
    ranks = ranks or Alone()
    kept = kept_activations.limit(config, optimizer, report, "out", ranks).kept
    return estimate.first_guess(config, optimizer, report, kept, ranks)


# Memory


@pytest.mark.parametrize("name", configs.schema.Optimizer.__dataclass_fields__["name"].metadata["choices"])
def test_the_state_of_every_optimizer_is_counted(config_of, name):
    config = config_of(optimizer__name=name, schedule__kind="constant")
    model, optimizer, _ = build_model(config, Tiny, "@numpy")
    expected = estimate.state(optimizer)
    optimizer.update(model, np.zeros((2, 3, 32, 32), np.float16), np.zeros(2, np.int32))
    arrays = [
        value
        for param in model.params()
        for name, value in (optimizer.master(param).update_rule.state or {}).items()
        if isinstance(value, np.ndarray) and value.ndim and name != "carried"  # two numbers of ScheduleFreeSGD
    ]
    assert sum(array.nbytes for array in arrays) == expected


def test_what_grows_with_what(config_of):
    weights = 4 * 3 * 9 + 4 * 10 + 10
    one, two, single = (_guess(config_of(**each)).parts for each in WISHES)
    assert two["training.batch_size"] == 2 * one["training.batch_size"]
    assert one["model.arch"] == weights * (2 + 4 + 2)  # with masters and gradients
    assert one["optimizer.name"] == 4 * weights
    assert single["model.arch"] == weights * (4 + 4)
    offloaded = _guess(config_of(memory__budget="8 GB")).parts
    assert offloaded["training.batch_size"] < one["training.batch_size"]


WISHES = {}, {"training__batch_size": 64}, {"precision__compute": "float32"}
STAGES = {"training__epochs": 9, "progressive__until": "[3, 6]", "progressive__sizes": "[16, 48]"}


@pytest.mark.parametrize(
    ("batch_sizes", "largest", "batch"), [("[]", 48, 32), ("[200, 8]", 16, 200), ("[8, 8]", 32, 32)]
)
def test_memory_is_that_of_the_stage_with_most_pixels(config_of, batch_sizes, largest, batch):
    alone = _guess(config_of(data__size=largest, training__batch_size=batch))
    staged = _guess(config_of(**STAGES, progressive__batch_sizes=batch_sizes))
    # A convolution without padding keeps a little less than in proportion.
    assert staged.parts == pytest.approx(alone.parts, rel=0.15)


class Gpu:
    """A stand-in for Chainer's device of CuPy."""

    class device(contextlib.nullcontext):
        id, mem_info = 0, (3 * 2**30, 8 * 2**30)

    device = device()


@pytest.fixture
def gpu(monkeypatch):
    """Makes a GPU of 8 GiB, of which 3 are free and 1 is in CuPy's pool."""

    def gpu():
        pool = types.SimpleNamespace(total_bytes=lambda: 2**30)
        monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(get_default_memory_pool=lambda: pool))
        monkeypatch.setattr(devices, "backend", types.SimpleNamespace(GpuDevice=Gpu))
        return Gpu()

    return gpu


def test_on_a_gpu_what_is_in_the_pool_is_free(config_of, gpu):
    found = _guess(config_of(training__device="auto"), device=gpu(), ranks=Alone(size=4, local_size=2))
    assert (found.available, found.sharing) == (2**32, 1)
    assert str(found).endswith(" MiB, and GPU 0 (8.0 GiB in all) has 4.0 GiB free")


def test_ranks_share_the_memory_of_the_host(config_of):
    found = _guess(config_of(), ranks=Alone(size=4, local_size=2))
    assert found.sharing == 2
    assert " MiB for each of 2 ranks, and this machine (" in str(found)
    assert dataclasses.replace(found, available=2 * found.needed).fits
    assert not dataclasses.replace(found, available=2 * found.needed - 1).fits


# Time


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (200000, "2 d 7 h")])
def test_times_in_words(seconds, text):
    assert timing.in_words(seconds) == text


class Clock:
    now = 0.0


class Batches(chainer.dataset.Iterator):
    """A loader that needs 0.5 s for a batch of 32 images."""

    def __init__(self):
        self.delivered = 0

    def next(self):
        self.delivered += 1
        Clock.now += 0.5
        return np.zeros((32, 4)), np.zeros(32)

    def finalize(self):
        self.ended = True


class Updater:
    """Steps of 0.25 s for an image, or of 2 s on a GPU, of 64 images in epochs of 640."""

    loss_func, epoch_detail, waited, seconds, seconds_on_gpu = None, 0.0, 0, 0.25, 2.0

    def __init__(self, device=None):
        self.device, self.sizes = device, []

    def get_optimizer(self, name):
        return types.SimpleNamespace(target="model", update=self.step)

    def converter(self, batch, device):
        return batch

    def step(self, loss, x, t):
        assert loss == "model"
        assert len(x) == len(t)
        self.sizes.append(len(x))
        Clock.now += self.seconds * len(x)

    def update(self):
        Clock.now += self.seconds_on_gpu
        self.epoch_detail += 0.1
        self.sizes.append(64)

    def wait(self):
        self.waited += 1


@pytest.fixture
def measure(monkeypatch, config_of):
    """Times an updater with a clock of our own, for 3 epochs."""
    loaders = []

    def train_iterator(config, images, device):
        assert config.data.size == 32
        loaders.append((config.training.batch_size, Batches()))
        return loaders[0][1]

    def measure(updater, images, batch_size, **settings):
        config = config_of(**{"training__batch_size": batch_size, "training__epochs": 3, **settings})
        found = timing.measure(config, types.SimpleNamespace(updater=updater), range(images))
        ((asked, loader),) = loaders
        assert loader.ended
        assert asked == min(batch_size, 32), "larger batches take as long for an image, and may take for ever"
        return found

    monkeypatch.setattr(timing.time, "perf_counter", lambda: Clock.now)
    monkeypatch.setattr(timing, "train_iterator", train_iterator)
    return measure


def test_on_a_cpu_some_images_are_timed(measure):
    updater = Updater()
    found = measure(updater, 6400, 4096)
    assert (found.loader, found.batches) == (64, 3)
    assert (found.steps, found.step) == (4, "a step of 8 images")
    assert updater.sizes == [2, 2, 4, 8]  # one to warm up; then until a step takes more than a second
    assert str(found).splitlines() == [
        "time, estimated from 3 batches of the loader and a step of 8 images",
        "  loader alone          64.0 images/s",
        "  steps alone            4.0 images/s",
        "  about 4 images/s: an epoch ~ 26 min 40 s, all 3 ~ 1 h 20 min; evaluation and snapshots not included",
    ]


def test_the_time_of_stages_goes_with_their_pixels(measure):
    """3 epochs of a quarter of the pixels, 1 of a 16th, 2 in full."""
    stages = {"training__epochs": 6, "progressive__until": "[3, 4]", "progressive__sizes": "[16, 8]"}
    text = str(measure(Updater(), 6400, 4096, **stages))
    assert "4 images/s: an epoch with 32 pixels ~ 26 min 40 s, all 6 ~ 1 h 15 min;" in text


def test_on_a_gpu_stages_are_timed_with_the_shard_of_a_rank(config_of, gpu, monkeypatch):
    made = []
    monkeypatch.setattr(timing, "train_iterator", lambda *arguments, **shard: made.append(shard) or Batches())
    updater = Updater(gpu())
    updater._iterators = {}
    config = config_of(training__epochs=3, progressive__until="[1]", progressive__sizes="[16]")
    timing.measure(config, types.SimpleNamespace(updater=updater), range(640), 4)
    assert made == [{}, {"ranks": 4}]
    assert isinstance(updater._iterators["main"], Batches)


def test_on_a_gpu_whole_steps_are_timed(measure, gpu):
    updater = Updater(gpu())
    found = measure(updater, 640, 16)
    assert found.steps == pytest.approx(32)
    assert found.step == "5 steps, loader included"
    assert updater.waited == 2
    assert len(updater.sizes) == 13


# The command


def _main(*arguments):
    return command.main(["--config", "c.yaml", "--dry-run", *arguments], {"tiny": Tiny})


@pytest.mark.parametrize("capture", first(1, ["true", "false"]))
def test_a_dry_run_says_what_is_needed_and_leaves_nothing(config_of, tmp_path, capsys, capture):
    config_of()
    assert _main("--set", f"capture={capture}") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for text in (
        "batch_size: 32",
        "kept for backward",
        "\nmemory: a step takes about ",
        "disk: 3 snapshots of ",
        ": an epoch ~ ",
    ):
        assert text in printed.out
    assert printed.out.splitlines()[-1].startswith("dry run: all is well; without --dry-run the results would go to ")
    assert os.listdir(tmp_path) == ["c.yaml"]


TOO_LARGE = [
    (60, ["data.size=2000"], "data.size 2000: 2 images, on which the network is tried, need about "),
    (
        200,
        ["data.size=1000"],
        r"training.batch_size 32: a step takes about .*, and this machine \(1 GiB in all\) has 200.0 MiB free; "
        "lower it, and raise training.accumulation_steps by as much to keep the step$",
    ),
    (60, ["data.size=1000", "training.batch_size=1"], "data.size 1000: .* free; lower it$"),
    (60, ["progressive.until=[1]", "progressive.sizes=[600]"], r"progressive.sizes \[600\]: .* free; lower it$"),
    (
        60,
        ["data.synthetic_images=9999", "progressive.until=[1]", "progressive.sizes=[32]"]
        + ["progressive.batch_sizes=[9999]"],
        r"progressive.batch_sizes \[9999\]: .* free; lower it$",
    ),
    (60, ["model.arch=wide"], "model.arch wide: .* free; choose a smaller network$"),
]


@pytest.mark.parametrize(("free", "settings", "words"), first(1, TOO_LARGE))
def test_what_clearly_does_not_fit_is_not_tried(config_of, tmp_path, capsys, monkeypatch, free, settings, words):
    config_of()
    there = free << 20, "this machine (1 GiB in all)"
    monkeypatch.setattr(estimate, "available_on_host", lambda: there)
    monkeypatch.setattr(timing, "measure", pytest.fail)
    networks = {"tiny": Tiny, "wide": lambda classes: chainer.Sequential(Tiny(5000), L.Linear(5000, 2000))}
    settings = [word for setting in settings for word in ("--set", setting)]
    assert command.main(["--config", "c.yaml", "--dry-run", *settings], networks) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: {words}", line), line
    assert os.listdir(tmp_path) == ["c.yaml"]


def _exhausted(*arguments):
    raise MemoryError("out of memory")


TRIED = [
    (_exhausted, r"a step runs out of the memory of this machine \(.* in all\); lower it, and raise "),
    (lambda *arguments: ("", 2**60), r"a step takes about 10737418.* GiB, and this machine .* free; lower it$"),
]


@pytest.mark.parametrize(("tried", "words"), TRIED)
def test_a_step_that_does_not_fit_is_found_by_trying(config_of, capsys, monkeypatch, tried, words):
    config_of()
    monkeypatch.setattr(kept_activations, "compared", tried)
    assert _main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"error: (training.batch_size|data.size) 32: {words}", line), line


@pytest.mark.slow
def test_the_first_guess_is_not_far_from_what_is_measured(config_of, monkeypatch):
    config_of()
    found = []
    monkeypatch.setattr(needs, "_check", lambda config, memory: found.append(memory))
    arguments = ["--config", "c.yaml", "--dry-run", "--set", "model.arch=resnet18"]
    assert command.main(arguments, {"tiny": Tiny, **MODELS}) == 0
    guess, measured = found
    assert measured.needed <= 1.5 * guess.needed  # less where the process takes memory that it has had before


def test_what_does_not_fit_on_the_disk(config_of, tmp_path, capsys, monkeypatch):
    config_of()
    asked = []
    full = types.SimpleNamespace(free=2**10)
    monkeypatch.setattr(needs.shutil, "disk_usage", lambda path: asked.append(path) or full)
    assert _main("--out", "new/folder", "--set", "snapshot.keep=7", "--set", "training.epochs=20") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: new/folder: 8 snapshots need ")
    assert line.endswith(" and 0.0 MiB are free; lower snapshot.keep, which is 7, or give another --out")
    assert asked == [str(tmp_path)]
    assert os.listdir(tmp_path) == ["c.yaml"]


def test_no_space_is_wanted_for_snapshots_that_will_never_be_written(config_of, capsys):
    config_of()
    assert _main("--set", "snapshot.keep=1000000", "--set", "snapshot.every=2 iterations") == 0
    assert "\ndisk: 4 snapshots of " in capsys.readouterr().out, (
        "two epochs of three steps have three, and one is written"
    )


def test_the_disk_space_is_that_of_real_snapshots(config_of, tmp_path, monkeypatch):
    """A file has some hundred bytes for each array, and the log, on top."""
    config_of()
    disk, networks = [], {"tiny": lambda classes: L.Linear(3 * 32**2, classes)}
    check = needs.check_disk
    monkeypatch.setattr(needs, "check_disk", lambda *arguments: disk.append(check(*arguments)) or "")
    monkeypatch.setattr(estimate, "in_words", str)
    assert command.main(["--config", "c.yaml", "--dry-run"], networks) == 0
    size, all_of_them = map(int, re.match(r"disk: 3 snapshots of (\d+), (\d+) of ", disk[0]).groups())
    assert all_of_them == 3 * size
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)
    assert command.main(["--config", "c.yaml", "--out", "out"], networks) == 0
    assert size <= (tmp_path / "out" / "snapshot_iter_6.npz").stat().st_size <= size + 50_000
