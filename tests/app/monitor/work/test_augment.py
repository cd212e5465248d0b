"""The task augment: pictures by the loader of the config, over any source, and nothing that goes on afterwards."""

import importlib.util
import os

import numpy as np
import pytest
from PIL import Image

from mixprec.app import config as configs
from mixprec.app.monitor.work.augment_task import pixels
from mixprec.data.sources.opening import open_images
from mixprec.data.sources.packing import pack
from tests.app.monitor.work.asking import answer, error, lines, picture

HAS_DALI = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali")
LOADERS = ["pillow", pytest.param("dali", marks=pytest.mark.skipif(not HAS_DALI, reason="DALI is not installed"))]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config whose images have their column in red and their row in green."""
    root = tmp_path_factory.mktemp("ramps")
    steps = np.arange(64, dtype=np.uint8) * 4
    ramp = np.stack([np.tile(steps, (64, 1)), np.tile(steps[:, None], (1, 64)), np.full((64, 64), 128, np.uint8)], 2)
    for part in ("train", "val"):
        for name in "ab":
            (root / part / name).mkdir(parents=True)
            Image.fromarray(ramp if name == "b" else ramp // 2).save(root / part / name / "0.png")
    (root / "it.yaml").write_text(
        "model: {arch: resnet8, classes: 2}\n"
        f"data: {{train: {root}/train, val: {root}/val, size: 24, resize: 24, crop_area: [0.2, 0.5]}}\n"
        "optimizer: {lr: 0.1}\ntraining: {batch_size: 64, epochs: 1}\n"
    )
    return root / "it.yaml"


def _children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())


@pytest.mark.parametrize("loader", LOADERS)
def test_crops_of_the_image(config, loader):
    before = _children()
    overrides = [f"data.loader={loader}", "precision.compute=float16", "data.pad_channels=true"]
    found = answer("augment", config=str(config), index=1, count=6, overrides=overrides)
    assert _children() == before
    assert (found["index"], found["class"]) == (1, "b")
    assert found["name"].endswith("train/b/0.png")
    original = picture(found["original"])
    assert original.shape == (64, 64, 3)
    assert original[10, 20].tolist() == [80, 40, 128]
    variants = [picture(each) for each in found["variants"]]
    assert [each.shape for each in variants] == [(24, 24, 3)] * 6
    assert len({each.tobytes() for each in variants}) == 6
    flips = set()
    for each in variants:
        red, green, blue = np.moveaxis(each.astype(int), 2, 0)
        assert abs(blue - 128).max() <= 1  # mean and deviation are taken back
        across = np.diff(red.mean(0))
        flips.add(bool(across[12] < 0))
        assert (across <= 0).all() or (across >= 0).all()
        assert (np.diff(green.mean(1)) >= 0).all()
        area = np.ptp(red) * np.ptp(green) / 256**2
        assert 0.1 < area < 0.55
    assert flips == {False, True}
    again = answer("augment", config=str(config), index=1, count=6, overrides=overrides)
    assert again["variants"] == found["variants"]


@pytest.mark.parametrize("loader", LOADERS)
def test_an_image_of_a_shard(config, loader, tmp_path):
    for part in ("train", "val"):
        pack(open_images(config.parent / part), tmp_path / part, form="tfrecord")
    overrides = [f"data.loader={loader}", f"data.train={tmp_path}/train", f"data.val={tmp_path}/val"]
    labels = open_images(tmp_path / "train").labels.tolist()
    found = answer("augment", config=str(config), index=labels.index(1), count=2, overrides=overrides)
    assert found["class"] == "b"
    plain = [f"data.loader={loader}"]
    assert found["variants"] == answer("augment", config=str(config), index=1, count=2, overrides=plain)["variants"]


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS)
def test_operations_and_erasing(config, loader):
    """As in training; a source of one image has no batch with copies. What is erased has the mean colour."""
    overrides = [f"data.loader={loader}", "data.augment=trivial", "data.erase=1", "data.repeats=4"]
    found = answer("augment", config=str(config), index=1, count=6, overrides=overrides)
    variants = [picture(each) for each in found["variants"]]
    for each in variants:
        is_mean = (each == np.rint(configs.load(config).data.mean)).all(2)
        assert is_mean.sum() >= 0.015 * 24 * 24
    plain = answer("augment", config=str(config), index=1, count=6, overrides=overrides[:1])
    assert found["variants"] != plain["variants"]


def test_an_image_has_the_size_of_the_last_stage(config):
    stages = ["training.epochs=3", "progressive.until=[2]", "progressive.sizes=[8]", "progressive.batch_sizes=[8]"]
    found = answer("augment", config=str(config), index=1, count=2, overrides=["data.loader=pillow", *stages])
    plain = answer("augment", config=str(config), index=1, count=2, overrides=["data.loader=pillow"])
    assert found["variants"] == plain["variants"]


def test_the_loader_ends_after_an_error(config, monkeypatch, capsys):
    before = _children()
    monkeypatch.setattr("mixprec.app.monitor.work.augment_task.pixels", lambda *arguments: 1 / 0)
    code, found = lines("augment", {"config": str(config), "index": 1, "overrides": ["data.loader=pillow"]})
    assert (code, list(found[-1])) == (1, ["error"])
    assert _children() == before
    assert "ZeroDivisionError" in capsys.readouterr().err


BAD_REQUESTS = [
    ({"index": 2}, "train: no image 2; its 2 images count from 0"),
    ({"index": 0, "count": 33}, "'count' is 33; wanted: a whole number from 1 to 32"),
    ({"index": 0, "overrides": ["data.train=nowhere"]}, "nowhere: no such file or folder; data.train says"),
]


@pytest.mark.parametrize(("request_", "message"), BAD_REQUESTS)
def test_bad_requests_are_one_line(config, request_, message):
    assert message in error("augment", **{"config": str(config), **request_})


def test_pixels_are_those_before_the_normalization(config):
    data = configs.load(config).data
    all_values = np.tile(np.arange(256, dtype=np.uint8)[:, None, None], (1, 2, 3))
    for dtype in ("float32", "float16"):
        normalized = ((all_values - np.array(data.mean)) / data.std).astype(dtype)
        np.testing.assert_array_equal(pixels(normalized, data), all_values)
