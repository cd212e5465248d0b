"""What a run may go on from, and what it says of settings that have changed."""

import json
import os
import re
import shutil

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
import yaml

from mixprec.app import config as configs
from mixprec.app.commands import train as command
from mixprec.app.parts import snapshot_settings
from mixprec.training import snapshots
from mixprec.training.plots import Plots
from models import MODELS
from tests.app.run import finished_run
from tests.app.run.lock_holder import lock_holder
from tests.called import call
from tests.cases import first

SECTIONS = {
    "model": {"arch": "tiny", "classes": 10},
    "data": {"format": "synthetic", "synthetic_images": 20, "size": 16, "resize": 32},
    "optimizer": {"lr": 0.01, "weight_decay": 0.001},
    "training": {"batch_size": 4, "epochs": 2, "device": "cpu"},
    "snapshot": {"every": "3 iterations", "best": False},
    "log": {"every": "2 iterations"},
}


class Tiny(chainer.Chain):
    def __init__(self, classes, zero_init_residual=False, stochastic_depth=0.0):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, nobias=True)
            self.norm = L.BatchNormalization(4)
            self.linear = L.Linear(4, classes)

    def forward(self, x):
        h = F.relu(self.norm(self.conv(x)))
        return self.linear(F.average_pooling_2d(h, h.shape[2:]))


NETWORKS = {"tiny": Tiny, "other": Tiny, **MODELS}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs the command in an empty folder with a config; returns what it has said."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SECTIONS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time

    def train(*arguments, config="c.yaml"):
        return call(lambda argv: command.main(argv, NETWORKS), "--config", config, *arguments)

    return train


def _set(*settings):
    return [word for setting in settings for word in ("--set", setting)]


def _content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Networks

NESTED = [(56, 20), (34, 18), (101, 50)]  # of each family


@pytest.mark.parametrize(("deep", "shallow"), first(1, NESTED, 2))
def test_a_deeper_networks_snapshot_is_refused_by_a_shallower_one(tmp_path, deep, shallow):
    """All names of the shallower one are in it. Without the settings, too, such as in a trainer of one's own."""

    def trainer(depth):
        model = L.Classifier(MODELS[f"resnet{depth}"](3))
        optimizer = chainer.optimizers.SGD().setup(model)
        updater = chainer.training.StandardUpdater(chainer.iterators.SerialIterator([], 1), optimizer)
        model(np.zeros((2, 3, 32, 32), np.float32), np.zeros(2, np.int32))
        return chainer.training.Trainer(updater)

    with chainer.using_config("dtype", np.float32):
        file = tmp_path / "snapshot.npz"
        written = chainer.serializers.DictionarySerializer()
        trainer(deep).updater.serialize(written["updater"])
        np.savez(file, **written.target)
        other = trainer(shallow)
        before = {
            name: np.array(array)
            for name, array in snapshots.contents(other.updater.get_optimizer("main").target).items()
        }
        words = r"another model: it has /predictor/layer\d/\d+/\S+ and \d+ more .*, which the model here lacks"
        with pytest.raises(snapshots.SnapshotError, match=words):
            snapshots.load(str(file), other)
        after = snapshots.contents(other.updater.get_optimizer("main").target)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


# Settings


REFUSED = ("model.arch", "model.classes", "optimizer.name", "training.batch_size", "training.accumulation_steps")
REFUSED += ("training.seed", "data.synthetic_images")
REFUSED += ("progressive.until", "progressive.sizes", "progressive.batch_sizes")


def _written(path, **changes):
    """Writes a snapshot that holds nothing but settings, of which some are others."""
    settings = configs.flat(configs.load("c.yaml")) | changes
    np.savez(path, **{"extensions/settings/config": np.frombuffer(json.dumps(settings).encode(), np.uint8)})


def test_a_changed_setting_is_told_or_refused(train):
    config = configs.load("c.yaml")
    for name, now in configs.flat(config).items():
        _written("s.npz", **{name: "another"})
        if name in REFUSED:
            words = f"s.npz: {name} is {configs.shown(now)} here, 'another' in the snapshot, and cannot change: "
            with pytest.raises(snapshots.SnapshotError, match=re.escape(words)):
                snapshot_settings.compare("s.npz", config)
        elif name != "training.ema_decay":  # which cannot begin, see below
            (line,) = snapshot_settings.compare("s.npz", config)
            assert line.startswith(f"{name} 'another' -> {configs.shown(now)}")


def test_a_snapshot_of_before_a_key_goes_on_as_its_default_says(train):
    """As of a version whose config had fewer keys; one that this version lacks has changed."""
    config = configs.load("c.yaml")
    _written("s.npz", **{"a.key": 5})
    with np.load("s.npz") as file:
        settings = json.loads(file["extensions/settings/config"].tobytes())
    earlier = {name: value for name, value in settings.items() if not name.startswith(("progressive", "schedule.by"))}
    assert len(earlier) == len(settings) - 4
    np.savez("s.npz", **{"extensions/settings/config": np.frombuffer(json.dumps(earlier).encode(), np.uint8)})
    assert snapshot_settings.compare("s.npz", config) == ["a.key 5 -> null"]


def test_a_run_with_the_same_settings_says_nothing_of_them(train, tmp_path):
    assert train("--out", "out", "--resume", "auto").returncode == 0
    config = (tmp_path / "out" / "config.yaml").read_text()
    resumed = train("--out", "out", "--resume", "auto")
    assert resumed.returncode == 0
    assert "changed" not in resumed.stdout
    assert (tmp_path / "out" / "config.yaml").read_text() == config
    assert {name for name in os.listdir("out") if re.search(r"\.\d+\.", name)} <= {"environment.1.txt"}


def test_the_momentum_of_schedule_free_sgd_stays(train):
    """The average is computed with it."""
    settings = _set("optimizer.name=ScheduleFreeSGD", "schedule.kind=constant")
    assert train("--out", "out", *settings).returncode == 0
    resumed = train("--out", "out", "--resume", "auto", *settings, *_set("optimizer.momentum=0.5"))
    assert resumed.returncode == 2
    assert "optimizer.momentum is 0.5 here, null in the snapshot, and cannot change: the average is" in resumed.stderr


def test_what_changed_in_an_earlier_process_is_still_said(train, tmp_path):
    assert train("--out", "out").returncode == 0
    first = _set("optimizer.lr=0.5", "training.epochs=3")
    for settings in (first, [*first, *_set("log.every=1 epoch")], [*first, *_set("log.every=1 epoch")]):
        assert train("--out", "out", "--resume", "auto", *settings).returncode == 0
    said = re.findall("^# (since .*)$", (tmp_path / "out" / "config.yaml").read_text(), re.MULTILINE)
    assert said == [
        "since iteration 10: optimizer.lr 0.01 -> 0.5",
        "since iteration 10: training.epochs 2 -> 3",
        "since iteration 15: log.every '2 iterations' -> '1 epoch'",
    ]
    assert configs.load("out/config.1.yaml") == configs.load("c.yaml")


def test_what_is_only_for_the_start_of_a_run_is_said_to_have_no_effect(train, tmp_path):
    assert train("--out", "out").returncode == 0
    resumed = train("--out", "out", "--resume", "auto", *_set("loss_scale.init_scale=64", "training.epochs=3"))
    assert (
        "changed: loss_scale.init_scale 65536.0 -> 64.0, which has no effect: it is for the start of a run\n"
        in resumed.stdout
    )
    assert finished_run.log(tmp_path / "out")[-1]["loss_scale"] >= 2.0**14


def test_weights_are_not_loaded_again(train, tmp_path):
    """The snapshot has newer ones; the file may be gone."""
    np.savez(tmp_path / "w.npz", **snapshots.contents(Tiny(10)))
    first = train("--out", "out", *_set("model.weights=w.npz"))
    assert (first.returncode, first.stderr) == (0, "")
    assert "weights: 8 tensors of w.npz\n" in first.stdout
    (tmp_path / "w.npz").unlink()
    before = finished_run.members(tmp_path / "out" / "model.npz")
    for weights in ("w.npz", "null"):
        resumed = train("--out", "out", "--resume", "auto", *_set(f"model.weights={weights}"))
        assert (resumed.returncode, resumed.stderr) == (0, "")
        assert "weights: " not in resumed.stdout
        assert finished_run.members(tmp_path / "out" / "model.npz") == before
    words = "changed: model.weights 'w.npz' -> null, which has no effect: it is for the start of a run\n"
    assert words in resumed.stdout


def test_another_runs_folder_is_not_mixed_with_a_snapshot(train, tmp_path):
    assert train("--out", "one").returncode == 0
    assert train("--out", "two", *_set("training.seed=7")).returncode == 0
    before = _content(tmp_path / "two")
    process = train("--out", "two", "--resume", "one/snapshot_iter_9.npz")
    assert process.returncode == 2
    words = "two: already used, by a run that one/snapshot_iter_9.npz does not belong to; give another --out"
    assert process.stderr == f"error: {words}\n"
    assert _content(tmp_path / "two") == before
    assert train("--out", "new", "--resume", "one/snapshot_iter_9.npz").returncode == 0
    assert finished_run.log(tmp_path / "new") == finished_run.log(tmp_path / "one")


def test_a_folder_that_holds_no_run_is_left_alone(train, tmp_path):
    (tmp_path / "proj" / "tensorboard").mkdir(parents=True)
    (tmp_path / "proj" / "log.jsonl").write_text("precious")
    process = train("--out", "proj", "--resume", "auto")
    assert (process.returncode, process.stderr) == (
        2,
        "error: proj: holds no run, but other files; give another --out\n",
    )
    assert (tmp_path / "proj" / "log.jsonl").read_text() == "precious"
    assert (tmp_path / "proj" / "tensorboard").is_dir()


class Lazy(Tiny):
    """Has a layer that is never called, and a value that is not there."""

    def __init__(self, classes):
        super().__init__(classes)
        with self.init_scope():
            self.unused = L.Linear(None, 5)
        self.add_persistent("nothing", None)


def test_a_network_with_a_layer_that_is_never_called_is_resumed(train, tmp_path, monkeypatch):
    monkeypatch.setitem(NETWORKS, "lazy", Lazy)
    arguments = _set("model.arch=lazy")
    assert train("--out", "whole", *arguments, *_set("training.epochs=3")).returncode == 0
    assert train("--out", "out", *arguments).returncode == 0
    resumed = train("--out", "out", "--resume", "auto", *arguments, *_set("training.epochs=3"))
    assert (resumed.returncode, resumed.stderr) == (0, "")
    weights = [finished_run.members(tmp_path / name / "model.npz") for name in ("whole", "out")]
    assert weights[0].keys() == weights[1].keys()


def test_a_dropped_average_is_refused(train):
    assert train("--out", "out", *_set("training.ema_decay=0.9")).returncode == 0
    dropped = train("--out", "out", "--resume", "auto")
    assert dropped.returncode == 2
    assert dropped.stderr == (
        "error: out/snapshot_iter_10.npz: training.ema_decay is null here, 0.9 in the snapshot, and cannot change: "
        "averages begin with the run; set it back, or give another --out\n"
    )
    other = train("--out", "out", "--resume", "auto", *_set("training.ema_decay=0.8"))
    assert (other.returncode, "changed: training.ema_decay 0.9 -> 0.8\n" in other.stdout) == (0, True)


@pytest.mark.parametrize("content", ["array", "pickle", "settings", "none"])
def test_a_file_that_is_no_snapshot_is_one_line(train, tmp_path, content):
    assert train("--out", "out").returncode == 0
    path = tmp_path / "out" / "snapshot_iter_10.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    settings = "extensions/settings/config"
    with open(path, "wb") as file:
        if content == "array":
            np.save(file, np.zeros(3))
        elif content == "pickle":
            np.savez(file, **{settings: np.array({}, object)})
        elif content == "settings":
            np.savez(file, **arrays | {settings: np.frombuffer(b"{", np.uint8)})
        else:
            np.savez(file, **{name: array for name, array in arrays.items() if name != settings})
    before = _content(tmp_path / "out")
    process = train("--out", "out", "--resume", "auto")
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    words = {
        "array": "corrupt snapshot, or not a snapshot at all (BadZipFile: File is not a zip file); remove it",
        "pickle": "corrupt snapshot (its settings are not JSON)",
        "settings": "corrupt snapshot (its settings are not JSON)",
        "none": "has no settings, like snapshots of other programs; give another --out",
    }
    assert line.startswith(f"error: out/snapshot_iter_10.npz: {words[content]}")
    assert _content(tmp_path / "out") == before


def test_a_name_with_thousands_of_digits_is_no_snapshot(train, tmp_path):
    (tmp_path / "out").mkdir()
    for digits in ("9" * 200, "\u0663"):
        (tmp_path / "out" / f"snapshot_iter_{digits}.npz").touch()
    assert snapshots.newest("out") is None


@pytest.mark.slow
def test_a_run_beside_a_running_one_is_refused(train, tmp_path):
    """A batch job that was queued again, before its first process has ended."""
    assert train("--out", "out").returncode == 0
    shutil.copytree("out", "copy")
    with lock_holder() as process:
        for arguments in (["--resume", "auto"], []):
            second = train("--out", "out", *arguments)
            assert second.returncode == 2
            assert second.stderr.startswith(f"error: out: in use by another run, process {process.pid} on ")
        assert train("--out", "out", "--resume", "auto", "--dry-run").returncode == 0, "it writes nothing"
        there = _content(tmp_path / "out")
        del there["run.lock"]
        assert there == _content(tmp_path / "copy")
    assert train("--out", "out", "--resume", "auto").returncode == 0
    assert finished_run.log(tmp_path / "out") == finished_run.log(tmp_path / "copy")
