"""A run whose files are stored in this repository goes on; its config and its weights mean what they meant."""

import json
import pathlib
import shutil

import chainer
import numpy as np
import PIL

from mixprec.app import config as configs
from mixprec.app.commands import train as command
from mixprec.training.plots import Plots
from tests.app.run import finished_run
from tests.app.run.stored_run.make import CONFIG, Network, make_images
from tests.called import call

DATA = pathlib.Path(__file__).with_name("stored_run")
SNAPSHOT = "snapshot_iter_4.npz"


def _arrays(path):
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def test_a_run_goes_on_from_the_stored_snapshot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time
    (settings,) = (value for name, value in _arrays(DATA / SNAPSHOT).items() if name.endswith("iterator:main/settings"))
    monkeypatch.setattr(PIL, "__version__", json.loads(settings.tobytes())["loader"].removeprefix("Pillow "))
    make_images(tmp_path / "images")
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert configs.load("c.yaml") == configs.load(DATA / "config.yaml")
    (tmp_path / "run").mkdir()
    shutil.copy(DATA / SNAPSHOT, "run")
    arguments = ("--config", "c.yaml", "--out", "run", "--resume", "auto")
    resumed = call(lambda argv: command.main(argv, {"tiny": Network}), *arguments)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"resuming from run/{SNAPSHOT}\n" in resumed.stdout
    assert "changed: " not in resumed.stdout
    (written,) = (value for name, value in finished_run.members(DATA / SNAPSHOT).items() if name.endswith("_log.npy"))
    log = finished_run.log(tmp_path / "run")
    assert [entry["iteration"] for entry in log] == list(range(1, 10))
    assert log[:4] == written
    old, new = _arrays(DATA / "model.npz"), _arrays(tmp_path / "run" / "model.npz")
    assert old.keys() == new.keys()
    for name, array in old.items():  # another machine adds in another order
        assert (array.dtype, array.shape) == (new[name].dtype, new[name].shape)
        np.testing.assert_allclose(new[name], array, rtol=1e-2, atol=1e-3, err_msg=name)


def test_the_stored_weights_load_into_a_plain_network(tmp_path):
    network = Network(3)
    chainer.serializers.load_npz(DATA / "model.npz", network)
    chainer.serializers.save_npz(tmp_path / "again.npz", network)
    saved, again = _arrays(DATA / "model.npz"), _arrays(tmp_path / "again.npz")
    assert again.keys() == saved.keys()
    for name, array in saved.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array, err_msg=name)
