"""The keys of a recipe together, through the command: what they do to a run, and that it resumes bit for bit."""

import json
import shutil

import numpy as np
import pytest
import yaml
from chainer import serializers
from matplotlib.figure import Figure
from PIL import Image

from mixprec.app.commands import train as command
from mixprec.precision.master_arrays import master_of
from mixprec.training.evaluation import Evaluator
from mixprec.training.plots import Plots
from models import MODELS
from tests.app.run import finished_run
from tests.cases import first

pytest.importorskip("nvidia.dali", reason='needs NVIDIA DALI: pip install -e ".[dali]"')

# 22 images in batches of 4: five and a half; two batches a step: three steps an epoch, the last of 6 images.
RECIPE = {
    "model": {"arch": "resnet8", "classes": 7, "zero_init_residual": True},
    "loss_scale": {"growth_interval": 2, "init_scale": 2.0**18},
    "data": {"size": 16, "val_size": 24, "resize": 24, "threads": 1, "last_batch": "pad"},
    "progressive": {"until": [1, 2], "sizes": [8, 12]},
    "optimizer": {"name": "LARS", "lr": 1.0, "base_batch_size": 16, "weight_decay": 0.001},
    "schedule": {"kind": "poly", "warmup_epochs": 1, "end_lr": 0.125, "power": 2.0},
    "training": (
        {"batch_size": 4, "accumulation_steps": 2, "epochs": 3, "device": "cpu", "label_smoothing": 0.1}
        | {"ema_decay": 0.75}
    ),
    "snapshot": {"every": "5 iterations"},
    "log": {"every": "3 iterations"},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that runs the command with the recipe and further arguments, in an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Plots, "_draw", lambda self, *_: Figure())  # an empty one, which is quicker
    monkeypatch.chdir(tmp_path)
    random = np.random.RandomState(0)
    for split, count in (("train", 22), ("val", 9)):
        for index in range(count):
            folder = tmp_path / split / "abcdefg"[index % 7]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = random.randint(0, 60, (30, 30, 3)) + 25 * (index % 7)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index:02}.png")
    settings = {**RECIPE, "data": {**RECIPE["data"], "train": "train", "val": "val"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))

    def start(*arguments):
        return command.main(["--config", "recipe.yaml", *arguments], MODELS)

    return start


def test_a_recipe_from_config_to_results(run, tmp_path, capsys):
    assert run("--out", "whole") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "optimizer: LARS, learning rate 0.5 at its peak, with 8 images in a step (1 * 8 / 16)" in lines
    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [entry["iteration"] for entry in log] == [3, 6, 9]
    # The peak is 1.0 * 8 / 16, the end 0.125 * 8 / 16; one epoch of warm-up, two of decay. A step is 8 of 22 images.
    decayed = [0.0625 + (0.5 - 0.0625) * (1 - progress) ** 2 for progress in (8 / 22, 19 / 22)]
    assert [entry["lr"] for entry in log] == pytest.approx([0.5, *decayed])
    last = log[-1]
    for name in ("accuracy", "accuracy_top5"):
        assert last[f"validation/main/{name}"] * 9 == pytest.approx(round(last[f"validation/main/{name}"] * 9))
    assert last["validation/main/accuracy_top5"] >= last["validation/main/accuracy"]
    assert "main/accuracy_top5" not in last

    # the saved model has the averages: alone, at 24 pixels, it has the loss that was validated
    with np.load(tmp_path / "whole" / "snapshot_iter_9.npz") as file:
        averages = {name: file[name] for name in file.files if "extensions/average/" in name}
    with np.load(tmp_path / "whole" / "model.npz") as file:
        for name in file.files:
            if not name.endswith("/N"):
                np.testing.assert_array_equal(file[name], averages[f"extensions/average/average/predictor/{name}"])
    serializers.load_npz(tmp_path / "whole" / "model.npz", MODELS["resnet8"](7))

    _assert_that_it_goes_on(run, tmp_path)


def _assert_that_it_goes_on(run, tmp_path, *arguments):
    """From a snapshot in the middle of an epoch it is the same run."""
    (tmp_path / "resumed").mkdir()
    for name in ("snapshot_iter_5.npz", "classes.txt"):
        shutil.copy(tmp_path / "whole" / name, tmp_path / "resumed" / name)
    assert run("--out", "resumed", "--resume", "auto", *arguments) == 0
    assert finished_run.log(tmp_path / "resumed") == finished_run.log(tmp_path / "whole")
    for name in ("snapshot_iter_9.npz", "model.npz"):
        whole, resumed = (finished_run.members(tmp_path / folder / name) for folder in ("whole", "resumed"))
        assert resumed == whole


@pytest.mark.slow
def test_schedule_free_sgd_is_validated_with_what_it_saves(run, tmp_path, monkeypatch):
    """The weights in the last validation are those in model.npz, and no others; and a resumed run is the same."""
    seen = []
    observe = Evaluator._observe

    def looking(self, arrays):
        seen.append(np.array(master_of(self.get_target("main").predictor.fc.W)))
        return observe(self, arrays)

    monkeypatch.setattr(Evaluator, "_observe", looking)
    settings = ("training.ema_decay=null", "optimizer.name=ScheduleFreeSGD", "schedule.kind=constant")
    settings += ("schedule.end_lr=0", 'optimizer.rates={"/fc/*": 2}', 'optimizer.freeze=["/conv1/*"]')
    arguments = [word for setting in settings for word in ("--set", setting)]
    assert run("--out", "whole", *arguments) == 0
    with np.load(tmp_path / "whole" / "snapshot_iter_9.npz") as file, np.load(tmp_path / "whole" / "model.npz") as x:
        assert (file["updater/model:main/predictor/fc/W"] != x["fc/W"]).any()
        np.testing.assert_array_equal(seen[-1], x["fc/W"])
    _assert_that_it_goes_on(run, tmp_path, *arguments)


@pytest.mark.slow
def test_mixed_images(run, tmp_path, capsys):
    """They are others in each step, the same ones after a resume, and the same for any number of threads."""
    settings = ("data.last_batch=partial", "training.loss=bce", "training.mixup=0.2", "training.cutmix=1")
    arguments = [word for setting in settings for word in ("--set", setting)]
    assert run("--out", "whole", *arguments) == 0
    said = "mixing: CutMix (alpha 1) in 50% of the batches, Mixup (alpha 0.2) in the others\n"
    assert said in capsys.readouterr().out
    _assert_that_it_goes_on(run, tmp_path, *arguments, "--set", "data.threads=3")
    assert run("--out", "plain", *arguments, "--set", "training.mix_probability=0") == 0
    assert finished_run.log(tmp_path / "plain") != finished_run.log(tmp_path / "whole")


@pytest.mark.parametrize("loader", first(0, ["pillow", "dali"], 1))
def test_augmented_images(run, tmp_path, capsys, loader):
    """They are the same ones after a resume, and for any number of threads."""
    if loader == "dali":
        pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    settings = (f"data.loader={loader}", "data.augment=rand", "data.augment_deviation=0.5", "data.erase=0.25")
    arguments = [word for setting in (*settings, "data.repeats=2") for word in ("--set", setting)]
    assert run("--out", "whole", *arguments) == 0
    assert (
        "augmentation: RandAugment, 2 operations of strength 9 +- 0.5, each with probability 1; a rectangle is erased "
        "with probability 0.25; 2 copies of an image, one behind the other\n"
    ) in capsys.readouterr().out
    _assert_that_it_goes_on(run, tmp_path, *arguments, "--set", "data.threads=3")


@pytest.mark.slow
def test_stochastic_depth(run, tmp_path):
    """Other images are dropped in each step, and the same ones after a resume."""
    arguments = ["--set", "model.stochastic_depth=0.5"]
    assert run("--out", "whole", *arguments) == 0
    _assert_that_it_goes_on(run, tmp_path, *arguments)
    with np.load(tmp_path / "whole" / "snapshot_iter_9.npz") as file:
        # Nine steps of two batches, and two of the three blocks: the first one drops nothing.
        assert file["updater/optimizer:main/mixprec/dropout_state0"].tolist()[1] == 9 * 2 * 2


def test_a_network_that_cannot_start_its_blocks_as_the_identity_is_named(run, capsys, tmp_path):
    assert command.main(["--config", "recipe.yaml", "--out", "out"], {"resnet8": lambda classes: None}) == 2
    assert capsys.readouterr().err == (
        "error: recipe.yaml: 'model.zero_init_residual' is true, which resnet8 does not have; set it to false\n"
    )
    assert not (tmp_path / "out").exists()
