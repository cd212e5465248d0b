"""The tasks images and data: thumbnails, counts, skipped files, and names that may hold anything."""

import shutil

import numpy as np
import pytest
from PIL import Image

from mixprec.app.monitor.work.thumbnails import thumbnail
from mixprec.data.sources.opening import open_images
from tests.app.monitor.work.asking import answer, error, picture

HOSTILE = "<script>alert(1)</script>".replace("/", "") + "\n\x1b"


@pytest.fixture
def copied(work, tmp_path):
    """A copy of the images and of the config, which names the copy, also as that of a run."""
    shutil.copytree(work / "images", tmp_path / "images")
    text = (work / "small.yaml").read_text().replace(f"{work}/", f"{tmp_path}/")
    for name in ("small.yaml", "config.yaml"):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_images_of_a_run(work):
    found = answer("images", run=str(work / "run"), indices=[6, 0, 3])["images"]
    source = open_images(work / "images" / "val")
    assert [image["index"] for image in found] == [6, 0, 3]
    for image in found:
        assert image["label"] == source.labels[image["index"]]
        assert image["class"] == "abc"[image["label"]]
        assert image["name"] == source.path(image["index"])
        with Image.open(image["name"]) as stored:
            np.testing.assert_array_equal(picture(image["png"]), np.asarray(stored))


def test_a_thumbnail_is_small_and_upright(tmp_path):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, :20] = 255
    exif = Image.Exif()
    exif[0x112] = 6  # to be turned clockwise by a quarter: what was on the left comes to the top
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "0.jpg", exif=exif, quality=95)
    small = picture(thumbnail(open_images(tmp_path), 0, 20))
    assert small.shape == (20, 10, 3)
    assert small[:4].min() > 240
    assert small[-14:].max() < 15


BAD_REQUESTS = [
    ({"indices": [7]}, "images/val: no image 7; its 7 images count from 0"),
    ({"indices": []}, "'indices' is []; wanted: a list of 1 to 60 whole numbers"),
    ({"indices": [0] * 61}, "wanted: a list of 1 to 60 whole numbers"),
    ({"indices": [-1]}, "'indices' is [-1]; wanted"),
    ({"indices": [0], "run": "."}, ".: no config.yaml in it; wanted: a results folder"),
    ({"indices": [0], "overrides": ["data.val=null"]}, "data.val"),
]


@pytest.mark.parametrize(("request_", "message"), BAD_REQUESTS)
def test_bad_requests_are_one_line(work, request_, message):
    assert message in error("images", **{"run": str(work / "run"), **request_})


def test_data(work):
    found = answer("data", config=str(work / "small.yaml"))
    assert found["train"] == {
        "images": 22,
        "classes": [["a", 8], ["b", 7], ["c", 7]],
        "skipped": [],
        "skipped_count": 0,
    }
    assert found["val"]["classes"] == [["a", 3], ["b", 2], ["c", 2]]
    assert found["problem"] is None
    assert [(each["label"], each["class"], len(each["images"])) for each in found["examples"]] == [
        *((0, "a", 3), (1, "b", 3), (2, "c", 3))
    ]
    assert all(image["class"] == each["class"] for each in found["examples"] for image in each["images"])
    assert picture(found["examples"][2]["images"][0]["png"]).shape == (12, 12, 3)


def test_names_may_hold_anything_that_a_file_system_does(copied):
    for part in ("train", "val"):
        (copied / "images" / part / "b").rename(copied / "images" / part / HOSTILE)
    shown = r"<script>alert(1)<script>\n\x1b"
    found = answer("data", config=str(copied / "small.yaml"))
    assert [shown, 7] in found["train"]["classes"]
    assert found["examples"][0]["images"][0]["name"].endswith(f"/{shown}/01.jpg")
    found = answer("images", run=str(copied), indices=[0])["images"]
    assert found[0]["class"] == shown


def test_skipped_files_are_listed(copied):
    for number in range(3):
        (copied / "images/train/a" / f"bad{number}\n.jpg").write_bytes(b"no image")
    (copied / "images/train/b" / b"\xff.jpg".decode("utf-8", "surrogateescape")).write_bytes(
        (copied / "images/train/b/01.jpg").read_bytes()
    )
    found = answer("data", config=str(copied / "small.yaml"), overrides=["data.on_error=skip"])
    assert (found["train"]["images"], found["train"]["skipped_count"]) == (22, 4)
    names, reasons = zip(*found["train"]["skipped"], strict=True)
    assert names[0].endswith(r"/a/bad0\n.jpg")
    assert names[3].endswith(r"/b/\udcff.jpg")
    assert reasons[3] == "the path is not valid UTF-8"
    found = answer("data", config=str(copied / "small.yaml"))
    assert (found["train"], found["examples"], found["val"]["images"]) == (None, [], 7)
    bad = r"/a/bad0\n.jpg: not an image in a known format (JPEG, PNG, BMP, TIFF, WEBP, PPM)"
    assert f"{bad} (and 3 more: a/" in found["problem"]


PROBLEMS = [
    (["data.train=nowhere"], [False, True], "nowhere: no such file or folder"),
    (
        ["data.format=synthetic", "data.train=null", "data.val=null", "data.synthetic_images=9", "snapshot.best=false"],
        *([False, False], "data.format is synthetic"),
    ),
    (["model.classes=4"], [True, True], "3 classes, but model.classes is 4"),
    (["training.batch_size=24"], [True, True], "22 images, but training.batch_size is 24"),
]


@pytest.mark.parametrize(("overrides", "opened", "problem"), PROBLEMS)
def test_problems_of_data_are_no_errors(work, overrides, opened, problem):
    found = answer("data", config=str(work / "small.yaml"), overrides=overrides)
    assert [found[part] is not None for part in ("train", "val")] == opened
    assert problem in found["problem"]
    assert bool(found["examples"]) == opened[0]


def test_a_bad_config_is_an_error():
    assert "nowhere.yaml: no such file" in error("data", config="nowhere.yaml")
