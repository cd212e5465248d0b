"""mixprec evaluate: tables counted again from plain Chainer's logits, the monitor's JSON, and bad input."""

import collections
import json
import os
import shutil

import chainer
import numpy as np
import pytest

from mixprec.app.commands import evaluate
from mixprec.app.finished.finished_run import newest_run
from mixprec.recipes.models import MODELS
from tests.app.finished import runs
from tests.app.monitor.work.asking import answer
from tests.called import call


@pytest.fixture(scope="module")
def others(work, tmp_path_factory):
    """Weights that take many images for others."""
    np.random.seed(3)
    network = MODELS["resnet8"](3)
    network.fc.W.array[...] = np.random.normal(size=network.fc.W.shape)
    path = tmp_path_factory.mktemp("others") / "others.npz"
    chainer.serializers.save_npz(path, network)
    return path


def done(*arguments):
    """Standard output of the command."""
    found = call(evaluate.main, *arguments)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


@pytest.mark.parametrize("is_trained", [True, False])
def test_the_tables_are_those_of_plain_chainer(is_trained, work, others, tmp_path):
    weights = work / "run" / "model.npz" if is_trained else others
    printed = done("--run", work / "run", "--weights", weights, "--json", tmp_path / "found.json").splitlines()
    found = json.loads((tmp_path / "found.json").read_text())

    images, labels = runs.validation(work)
    logits = runs.logits_of(weights, images).astype(float)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(7), labels]
    pairs = collections.Counter(zip(labels.tolist(), logits.argmax(1).tolist(), strict=True))
    wrong = {pair: count for pair, count in pairs.items() if pair[0] != pair[1]}
    assert bool(wrong) or is_trained
    right = [pairs[label, label] for label in range(3)]
    per_class = [[3, right[0]], [2, right[1]], [2, right[2]]]

    assert (found["file"], found["weights"], found["classes"]) == ("found.json", weights.name, ["a", "b", "c"])
    assert (found["images"], found["top1"], found["top5"]) == (7, sum(right) / 7, None)
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert found["confusion"] == [[pairs[true, taken] for taken in range(3)] for true in range(3)]
    assert {(true, taken): count for true, taken, count in found["confused"]} == wrong
    assert [row[:2] for row in found["per_class"]] == per_class
    means = [losses[labels == label].mean() for label in range(3)]
    np.testing.assert_allclose([row[2] for row in found["per_class"]], means, rtol=1e-4)

    assert printed[0].split() == ["class", "images", "correct", "accuracy", "loss"]
    rows = [f"{name} {of} {good} {100 * good / of:.2f} %" for name, (of, good) in zip("abc", per_class, strict=True)]
    assert [" ".join(line.split()[:-1]) for line in printed[1:4]] == rows
    told = {tuple(line.split()) for line in printed[6:-2]}
    assert told == {("abc"[true], "abc"[taken], str(count)) for (true, taken), count in wrong.items()}
    assert printed[-1].startswith(f"{weights.name} in float32 on the CPU: 7 images, top-1 {100 * sum(right) / 7:.2f} %")


def test_the_json_is_the_monitors(work, tmp_path):
    run = shutil.copytree(work / "run", tmp_path / "run")
    page = answer("evaluate", run=str(run))
    file = run / "evaluation-model.json"
    written = file.read_bytes()
    file.unlink()
    done("--run", run, "--json", file)
    assert file.read_bytes() == written
    assert json.loads(done("--run", run, "--json", "-")) == {**page, "file": None}
    assert sorted(path.name for path in run.iterdir()) == sorted(["classes.txt", "config.yaml", file.name, "model.npz"])


def test_images_elsewhere_and_a_part_of_them(work, tmp_path):
    """Training images are not needed, and the images of the list are named by their place in it."""
    shutil.copytree(work / "images" / "val", tmp_path / "moved")
    settings = ("--set", f"data.val={tmp_path}/moved", "--set", "data.train=nowhere")
    found = json.loads(done("--run", work / "run", *settings, "--images", 4, "--json", "-"))
    assert found["images"] == len(found["worst"]) == sum(row[0] for row in found["per_class"]) == 4
    paths = [str(path) for name in "abc" for path in sorted((tmp_path / "moved" / name).iterdir())]
    assert [row[1] for row in found["worst"]] == [paths[row[0]] for row in found["worst"]]
    assert len({row[0] for row in found["worst"]}) == 4


def test_a_list_that_lacks_classes_has_a_top_5(tmp_path):
    runs.make(tmp_path, classes=9)
    images, labels = runs.validation(tmp_path)
    paths = [path for name in "abc" for path in sorted((tmp_path / "images" / "val" / name).iterdir())]
    lines = [f"{path} {label}\n" for path, label in zip(paths, labels, strict=True)]
    (tmp_path / "list.txt").write_text("".join(lines))
    printed = done("--run", tmp_path / "run", "--set", f"data.val={tmp_path}/list.txt").splitlines()
    logits = runs.logits_of(tmp_path / "run" / "model.npz", images, classes=9)
    top5 = np.mean([label in np.argsort(-row)[:5] for row, label in zip(logits, labels, strict=True)])
    assert f", top-5 {100 * top5:.2f} %, " in printed[-1]
    assert [line.split() for line in printed[4:10]] == [[str(name), "0", "0", "-", "-"] for name in range(3, 9)]


def test_weights_of_a_run_that_diverged(work, tmp_path):
    with np.load(work / "run" / "model.npz") as file:
        arrays = dict(file)
    arrays["fc/b"][...] = np.nan
    np.savez(tmp_path / "weights.npz", **arrays)
    printed = done("--run", work / "run", "--weights", tmp_path / "weights.npz")
    assert printed.endswith("top-1 0.00 %, loss not finite\n") or ", top-1 0.00 %, top-5 0.00 %, loss" in printed
    assert " taken for" not in printed
    assert [line.split()[2:4] for line in printed.splitlines()[1:4]] == [["0", "0.00"]] * 3


def test_the_newest_run_of_a_folder(work, tmp_path):
    for index, name in enumerate(("new", "old")):
        shutil.copytree(work / "run", tmp_path / "results" / "c" / name)
        os.utime(tmp_path / "results" / "c" / name / "config.yaml", (1e9 - index, 1e9 - index))
    for folder in ("results", "results/c"):
        assert newest_run(str(tmp_path / folder)) == str(tmp_path / "results" / "c" / "new")
    assert newest_run(str(tmp_path / "results" / "c" / "old")).endswith("old")
    assert newest_run("nowhere") == "nowhere"


BAD = {
    "no folder": (["--run", "nowhere"], "nowhere: no such folder; wanted: a results folder of mixprec train"),
    "a misspelled folder": (["--run", "runn"], "or a folder of them; did you mean 'run'?"),
    "a file": (
        ["--run", "run/model.npz"],
        "run/model.npz: not a folder; wanted: a results folder of mixprec train, or ",
    ),
    "no run": (["--run", "images"], "images: no config.yaml in it"),
    "no weights": (
        ["--run", "stopped"],
        "no model.npz in it, as the run has not come to its end; --weights stopped/snapshot_iter_11",
    ),
    "no such weights": (["--weights", "other.npz"], "other.npz: no such file"),
    "misspelled weights": (["--weights", "run/modle.npz"], "no such file; did you mean 'run/model.npz'?"),
    "other images": (["--set", "data.val=elsewhere"], "elsewhere: no such file or folder; --set data.val=... says"),
    "other classes": (["--set", "data.val=other"], "classes.txt: class 0 is 'a' there, 'b' in "),
    "an unknown key": (["--set", "data.vla=1"], "--set: unknown key 'data.vla'"),
    "no number": (["--images", "0"], "argument --images: found '0'; wanted: a whole number from 1 on"),
    "a device": (["--device", "tpu"], "--device: found 'tpu', expected 'auto', 'cpu', 'gpu' or 'gpu:N'"),
    "no JSON": (["--json", "run/model.npz"], "run/model.npz: it exists, and is not named like a JSON file; wanted: a "),
    "its device": (["--set", "training.device=gpu:31"], "--set: training.device: found 'gpu:31', but"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(what, work, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(work, tmp_path / "work"))
    shutil.copytree("run", "stopped")
    (tmp_path / "work" / "stopped" / "model.npz").rename("stopped/snapshot_iter_9.npz")
    shutil.copy("stopped/snapshot_iter_9.npz", "stopped/snapshot_iter_11.npz")
    shutil.copytree("images/val", "other")
    (tmp_path / "work" / "other" / "a").rename("other/x")
    before = set((tmp_path / "work").rglob("*"))
    arguments, message = BAD[what]
    found = call(evaluate.main, "--run", "run", "--json", "e.json", *arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert message in found.stderr
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
    assert set((tmp_path / "work").rglob("*")) == before


@pytest.mark.parametrize("file", ["nowhere/found.json", "/dev/null", "folder"])
def test_a_file_that_cannot_be_written_is_found_before_anything_is_computed(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    found = call(evaluate.main, "--run", "no run", "--json", file)
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert found.stderr.startswith(f"error: {file}: ")


def test_ctrl_c_leaves_nothing(work, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mixprec.app.finished.predictions.Predictions.add", interrupted)
    with pytest.raises(KeyboardInterrupt):  # which the process turns into 130
        evaluate.main(["--run", str(work / "run"), "--json", str(tmp_path / "found.json")])
    assert list(tmp_path.iterdir()) == []
