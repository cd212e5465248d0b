"""A config, a snapshot and weights of commit 9f731e5 load unchanged; so do settings with keys by their former names."""

import json
import pathlib
import shutil

import chainer
import numpy as np
import PIL
import pytest

from mixprec import announcements
from mixprec import config as configs
from mixprec.config.declaration import former_names
from mixprec.training import command, snapshots
from mixprec.training.model import build_model
from mixprec.training.plots import Plots
from tests.called import call
from tests.training import finished_run
from tests.training.data_of_9f731e5.make import CONFIG, Network, make_images

DATA = pathlib.Path(__file__).with_name("data_of_9f731e5")
SNAPSHOT = "snapshot_iter_4.npz"
FORMER = former_names(configs.Config)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as the old version has left it, but for what it only wrote for people to read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(announcements, "_said", set())
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time
    with np.load(DATA / SNAPSHOT) as archive:
        (name,) = (name for name in archive.files if name.endswith("iterator:main/settings"))
        loader = json.loads(archive[name].tobytes())["loader"]
    monkeypatch.setattr(PIL, "__version__", loader.removeprefix("Pillow "))
    make_images(tmp_path / "images")
    (tmp_path / "run").mkdir()
    for file in ("config.yaml", SNAPSHOT):
        shutil.copy(DATA / file, tmp_path / "run")
    return tmp_path / "run"


def resume(*arguments, config=DATA / "config.yaml"):
    given = ("--config", config, "--out", "run", "--resume", "auto", *arguments)
    return call(lambda argv: command.main(argv, {"tiny": Network}), *given)


def arrays(path):
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def changes(process):
    return [line for line in process.stdout.splitlines() if line.startswith("changed: ")]


# The config


def test_the_resolved_config_means_what_it_meant(folder, caplog):
    config = configs.load(DATA / "config.yaml")
    messages = caplog.messages.copy()
    (folder / "c.yaml").write_text(CONFIG)
    assert config == configs.load(folder / "c.yaml")
    assert len(messages) == len({*FORMER, *configs.Config.CONSTANTS})
    assert all(" is called " in message or "no longer a key; it is always " in message for message in messages)
    assert (config.loss_scale.growth_interval, config.training.accumulation_steps) == (3, 2)
    assert (config.optimizer.base_batch_size, config.capture.dynamic_shapes) == (4, "eager")
    assert config.cudnn.allow_tf32


# The snapshot


def of_snapshot(caplog):
    return [message for message in caplog.messages if SNAPSHOT in message]


def test_a_run_goes_on_from_the_snapshot(folder, caplog):
    resumed = resume()
    assert (resumed.returncode, resumed.stderr) == (0, "")
    words = "of a version that kept no settings; those of run/config.yaml are taken for them"
    assert of_snapshot(caplog) == [f"run/{SNAPSHOT}: {words}"]
    assert not [message for message in caplog.messages if message.startswith("run/config.yaml")]
    assert f"resuming from run/{SNAPSHOT}\n" in resumed.stdout
    assert "changed: " not in resumed.stdout
    (written,) = (value for name, value in finished_run.members(DATA / SNAPSHOT).items() if name.endswith("_log.npy"))
    log = finished_run.log(folder)
    assert [entry["iteration"] for entry in log] == list(range(1, 10))
    assert log[:4] == written
    old, new = arrays(DATA / "model.npz"), arrays(folder / "model.npz")
    assert old.keys() == new.keys()
    for name, array in old.items():
        assert (array.dtype, array.shape) == (new[name].dtype, new[name].shape)
        np.testing.assert_allclose(new[name], array, rtol=1e-2, atol=1e-3, err_msg=name)


def test_the_next_snapshot_holds_its_settings(folder, caplog):
    assert resume().returncode == 0
    caplog.clear()
    again = resume("--set", "training.epochs=4")
    assert again.returncode == 0
    assert of_snapshot(caplog) == []
    assert changes(again) == ["changed: training.epochs 3 -> 4"]


def test_its_settings_are_those_of_the_config_beside_it(folder):
    refused = resume("--set", "training.batch_size=4")
    assert refused.returncode == 2
    words = "training.batch_size is 4 here, 2 in the snapshot, and cannot change"
    assert refused.stderr.startswith(f"error: run/{SNAPSHOT}: {words}")
    resumed = resume("--set", "optimizer.lr=0.5")
    assert resumed.returncode == 0
    assert changes(resumed) == ["changed: optimizer.lr 0.01 -> 0.5"]


def test_without_the_config_beside_it_one_line_says_that_nothing_is_compared(folder, caplog):
    (folder / "config.yaml").unlink()
    resumed = resume("--set", "optimizer.lr=0.5")
    assert resumed.returncode == 0
    words = "of a version that kept no settings, and nothing tells whether they have changed: run/config.yaml: no such"
    (message,) = of_snapshot(caplog)
    assert message.startswith(f"run/{SNAPSHOT}: {words}")
    assert changes(resumed) == []


# Settings in snapshots by their former names


def test_settings_by_their_former_names_have_not_changed(folder):
    assert resume().returncode == 0
    newest = snapshots.newest("run")
    content, name = arrays(newest), "extensions/settings/config"
    old_names = {today: former for former, today in FORMER.items()}
    values = {old_names.get(key, key): value for key, value in json.loads(content[name].tobytes()).items()}
    for warmup, told in ((3, []), (5, ["changed: capture.warmup 5 -> 3"])):
        old = values | configs.Config.CONSTANTS | {"capture.warmup": warmup}
        np.savez(newest, **content | {name: np.frombuffer(json.dumps(old).encode(), np.uint8)})
        resumed = resume()
        assert resumed.returncode == 0, resumed.stderr
        assert changes(resumed) == told


# The weights


def test_the_weights_load_bit_for_bit(folder):
    saved = arrays(DATA / "model.npz")
    plain = Network(3)
    model, _ = build_model(configs.load(DATA / "config.yaml"), Network, "@numpy")
    for network in (plain, model.predictor):
        chainer.serializers.load_npz(DATA / "model.npz", network)
        chainer.serializers.save_npz("again.npz", network)
        again = arrays("again.npz")
        assert again.keys() == saved.keys()
        for name, array in saved.items():
            assert again[name].dtype == array.dtype
            np.testing.assert_array_equal(again[name], array, err_msg=name)
