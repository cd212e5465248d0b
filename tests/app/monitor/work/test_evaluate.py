"""The task evaluate: a run of digits against its own log, by-hand tables, and files that are no weights."""

import errno
import json
import os
import pathlib
import pickle
import shutil
import signal

import chainer
import numpy as np
import pytest

from mixprec.app.finished.predictions import Predictions
from mixprec.app.monitor.work import serving
from mixprec.recipes.models import MODELS
from tests.app.monitor.work.asking import answer, error, lines


@pytest.fixture
def run(work, tmp_path):
    """A copy of the run."""
    return shutil.copytree(work / "run", tmp_path / "run")


@pytest.mark.slow
def test_a_run_in_float32_is_evaluated_as_in_its_log(digits):
    folder, entry = digits
    found = answer("evaluate", run=str(folder))
    for ours, logged in (("top1", "accuracy"), ("top5", "accuracy_top5")):
        images = 355 * entry[f"validation/main/{logged}"]  # the mean of batches, each in float32
        assert 355 * found[ours] == pytest.approx(round(images), abs=1e-9)
        assert images == pytest.approx(round(images), abs=1e-3)
    assert found["loss"] == pytest.approx(entry["validation/main/loss"], rel=1e-5)
    assert (found["images"], found["weights"]) == (355, "model.npz")
    confusion = np.array(found["confusion"])
    assert confusion.sum() == 355
    assert confusion.trace() == round(355 * found["top1"])
    assert confusion.sum(1).tolist() == [images for images, _, _ in found["per_class"]]
    assert confusion.diagonal().tolist() == [correct for _, correct, _ in found["per_class"]]
    for true, predicted, count in found["confused"]:
        assert confusion[true, predicted] == count
    assert sum(count for _, _, count in found["confused"]) == 355 - confusion.trace()
    assert len(found["worst"]) == 200
    losses = [row[4] for row in found["worst"]]
    assert losses == sorted(losses, reverse=True)
    index, name, label, _, loss, share = found["worst"][0]
    assert pathlib.Path(name).parent.name == str(label)
    assert share == pytest.approx(np.exp(-loss))
    assert 0 <= index < 355
    assert found["file"] == "evaluation-model.json"
    assert json.loads((folder / found["file"]).read_text()) == found


def test_a_full_disk_is_one_line_and_leaves_nothing(run, monkeypatch):
    replace = os.replace

    def full(source, target):
        if os.path.dirname(target) == str(run):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        replace(source, target)

    before = sorted(os.listdir(run))
    monkeypatch.setattr("mixprec.base.files.os.replace", full)
    assert "No space left on device" in error("evaluate", run=str(run))
    assert sorted(os.listdir(run)) == before


def test_a_snapshot_stands_in_for_weights_that_are_not_there_yet(run):
    network = MODELS["resnet8"](3)
    serializer = chainer.serializers.DictionarySerializer(path="updater/model:main/predictor/")
    serializer.save(network)
    for iteration in (7, 11):
        np.savez(run / f"snapshot_iter_{iteration}.npz", **serializer.target)
    named = answer("evaluate", run=str(run), weights="snapshot_iter_7.npz")
    assert (named["weights"], named["file"]) == ("snapshot_iter_7.npz", "evaluation-snapshot_iter_7.json")
    os.remove(run / "model.npz")
    newest = answer("evaluate", run=str(run))
    assert newest["weights"] == "snapshot_iter_11.npz"
    assert newest["loss"] == named["loss"]
    assert (newest["top5"], len(newest["confusion"])) == (None, 3)


def _pickles(path):
    np.savez(path, **{"fc/W": np.array([print], object)})


def _raw_pickle(path):
    path.write_bytes(pickle.dumps({"fc/W": 1}))


def _cut_off(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _damaged(path):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    for place in range(middle, middle + 200):  # more than a local header, of which not every byte counts
        content[place] ^= 0xFF
    path.write_bytes(bytes(content))


def _other_network(path):
    chainer.serializers.save_npz(path, MODELS["resnet14"](3))


BAD_WEIGHTS = {
    "pickles": (_pickles, "holds Python objects, which are not read"),
    "a pickle": (_raw_pickle, "damaged, or not an .npz file"),
    "cut off": (_cut_off, "damaged, or not an .npz file"),
    "damaged": (_damaged, "damaged, or not an .npz file"),
    "another network": (_other_network, "another network"),
    "missing": (os.remove, "no model.npz in it, as the run has not come to its end"),
}


@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_bad_weights_are_one_line(what, run):
    spoil, message = BAD_WEIGHTS[what]
    spoil(run / "model.npz")
    before = sorted(os.listdir(run))
    assert message in error("evaluate", run=str(run))
    assert sorted(os.listdir(run)) == before


BAD = {
    "no folder": ({"run": "nowhere"}, "nowhere: no such folder"),
    "no run": ({"run": "."}, "no config.yaml in it"),
    "a path": ({"weights": "../run/model.npz"}, "'weights' is ../run/model.npz; wanted: the name of a .npz file in"),
    "a pickle of torch": ({"weights": "model.pt"}, "'weights' is model.pt; wanted: the name of a .npz file in"),
    "no such weights": ({"weights": "other.npz"}, "other.npz: no such file"),
    "other images": ({"overrides": ["data.val=elsewhere"]}, "elsewhere: no such file or folder"),
    "an unknown key": ({"overrides": ["data.vla=1"]}, "--set: unknown key 'data.vla'"),
    "synthetic": (
        {
            "overrides": [
                *("data.format=synthetic", "data.train=null", "data.val=null", "data.synthetic_images=9"),
                "snapshot.best=false",
            ]
        },
        "data.format is synthetic: there are no images",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_are_one_line(what, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request, message = BAD[what]
    assert message in error("evaluate", **{"run": str(run), **request})


@pytest.mark.parametrize("when", ["os.fsync", "mixprec.app.finished.predictions.Predictions.add"])
def test_sigterm_leaves_no_files(when, run, monkeypatch):
    """At its first batch, and when the file has been written but has not got its name."""
    before = sorted(os.listdir(run))
    found = before

    def stop(*arguments):
        nonlocal found
        found = sorted(os.listdir(run))
        if when == "os.fsync" and found == before:  # of another file: which images have been checked
            return
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(when, stop)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        serving.raise_at(signal.SIGTERM, "ended by SIGTERM", 143)
        code, written = lines("evaluate", {"run": str(run)})
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (code, written[-1]) == (143, {"error": "ended by SIGTERM"})
    assert (found != before) == (when == "os.fsync")  # there was something to clean up
    assert sorted(os.listdir(run)) == before


def test_tables_by_hand():
    predictions = Predictions(np.arange(5), 3)
    logits = np.log(np.array([[8, 1, 1], [1, 8, 1], [1, 8, 1], [8, 1, 1], [2, 4, 4]], "f") / 10)
    predictions.add(logits[:2], np.array([0, 0]))
    predictions.add(logits[2:], np.array([0, 1, 2]))
    found = predictions.tables("image {}".format)
    assert found["confusion"] == [[1, 2, 0], [1, 0, 0], [0, 1, 0]]
    assert found["confused"] == [[0, 1, 2], [1, 0, 1], [2, 1, 1]]
    assert (found["images"], found["top1"], found["top5"]) == (5, 0.2, None)
    losses = -np.log([0.8, 0.1, 0.1, 0.1, 0.4])
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert [row[:2] for row in found["per_class"]] == [[3, 1], [1, 0], [1, 0]]
    assert found["per_class"][0][2] == pytest.approx(losses[:3].mean(), rel=1e-6)
    assert [row[0] for row in found["worst"]][3:] == [4, 0]
    assert found["worst"][3] == [4, "image 4", 2, 1, pytest.approx(losses[4]), pytest.approx(0.4)]


def test_many_classes_and_a_class_without_images():
    predictions = Predictions(np.arange(2), 60)
    logits = np.zeros((2, 60), "f")
    logits[:, :5] = 1
    predictions.add(logits, np.array([4, 5]))
    found = predictions.tables(str)
    assert (found["confusion"], found["top5"], found["top1"]) == (None, 0.5, 0)
    assert found["confused"] == [[4, 0, 1], [5, 0, 1]]
    assert found["per_class"][7] == [0, 0, None]


def test_a_network_that_diverged(run):
    with np.load(run / "model.npz") as file:
        arrays = dict(file)
    arrays["fc/b"][...] = np.nan
    np.savez(run / "model.npz", **arrays)
    found = answer("evaluate", run=str(run))
    assert found["loss"] is None
    assert found["worst"][0][4] is None
    assert sum(map(sum, found["confusion"])) == 0  # NaN is no prediction
    assert (found["top1"], found["confused"], found["worst"][0][3]) == (0.0, [], -1)
