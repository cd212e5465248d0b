"""make_textures.py: what the pictures show, that the same ones come out, all of them or none."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixprec.data import generated_set, textures
from mixprec.data.data_error import DataError
from mixprec.data.sources.classes import check_same_classes
from mixprec.data.sources.folders import scan_folders
from scripts import make_textures
from tests import ROOT
from tests.called import call

SHA256_OF_THE_NAMES = "ef245880920a7788dc74424d281ec4db23c1e501a16decc177e2e2f25d1cb394"
SCRIPT = ROOT / "scripts" / "make_textures.py"


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The smallest set but for four pictures more, so that classes differ in size."""
    out = tmp_path_factory.mktemp("set") / "textures"
    assert textures.make_textures(out, images=104) == (74, 30, True)
    return out


@pytest.fixture
def here(monkeypatch):
    """Pictures are made in this process, and as a few bytes."""
    monkeypatch.setattr(
        textures,
        "_contents",
        lambda images, seed, side: (
            (textures._path(index, images), b"%d %d" % (index, seed)) for index in range(images)
        ),
    )


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.slow
def test_set_is_complete_split_by_class_and_readable(complete):
    train, val = scan_folders(complete / "train"), scan_folders(complete / "val")
    check_same_classes(train, val)
    assert train.classes == tuple(sorted(texture.name for texture in textures.CLASSES))
    sizes = dict.fromkeys(train.classes, 10) | {texture.name: 11 for texture in textures.CLASSES[:4]}
    for images, share in ((val, 3), (train, 7)):
        found = dict(zip(images.classes, np.bincount(images.labels).tolist(), strict=True))
        assert found == {name: share + (size - 10 if images is train else 0) for name, size in sizes.items()}
    numbers = sorted(int(Path(file).stem) for file in train.files + val.files)
    assert numbers == list(range(104))


@pytest.mark.slow
@pytest.mark.slow
def test_smaller_pictures_are_the_same_ones_made_smaller(tmp_path, complete):
    assert textures.make_textures(tmp_path / "small", images=104, side=40) == (74, 30, True)
    paths = sorted(path.relative_to(complete) for path in complete.glob("*/*/*.jpg"))
    assert sorted(path.relative_to(tmp_path / "small") for path in (tmp_path / "small").glob("*/*/*.jpg")) == paths
    for path in paths[::10]:
        with Image.open(complete / path) as large, Image.open(tmp_path / "small" / path) as small:
            assert min(small.size) == 40
            assert max(small.size) == pytest.approx(40 * max(large.size) / min(large.size), abs=0.5)
            again = np.asarray(large.resize(small.size, Image.Resampling.BOX), np.float32)
            assert np.abs(np.asarray(small, np.float32) - again).mean() < 12
    with pytest.raises(DataError, match="holds textures of side 40, not None"):
        textures.make_textures(tmp_path / "small", images=104)


@pytest.mark.parametrize("side", [15, 321])
def test_side_is_within_bounds(side, tmp_path):
    with pytest.raises(DataError, match=f"side {side}: must be 16 to 320"):
        textures.make_textures(tmp_path / "small", images=104, side=side)


@pytest.mark.slow
def test_pictures_have_the_size_of_imagenets(complete):
    shapes = []
    for path in complete.glob("*/*/*.jpg"):
        with Image.open(path) as image:
            assert image.mode == "RGB"
            shapes.append(image.size)
        assert 8_000 < path.stat().st_size < 80_000
    assert all(330 <= min(shape) <= 420 and 1.24 < max(shape) / min(shape) < 1.42 for shape in shapes)
    upright = sum(height > width for width, height in shapes)
    assert 0.15 * len(shapes) < upright < 0.45 * len(shapes)


def test_file_names_and_classes_never_change():
    """Fixed here: results of different days and machines must be over the same split of the same classes."""
    names = "\n".join(textures._path(index, 10000) for index in range(10000))
    assert hashlib.sha256(names.encode()).hexdigest() == SHA256_OF_THE_NAMES


@pytest.mark.slow
def test_same_bytes_in_every_process_whatever_the_number_of_pictures(complete):
    files = contents(complete)
    for index in range(0, 104, 13):
        assert files[textures._path(index, 104)] == textures._jpeg(index, seed=0)
    assert textures._jpeg(0, seed=1) != textures._jpeg(0, seed=0)


@pytest.mark.parametrize(("wave", "angle"), [("sine", 0), ("square", 30), ("saw", 90), ("sine", 135)])
def test_grating_has_the_direction_and_the_periods_that_were_asked_for(wave, angle):
    """Its strongest frequency, from NumPy's FFT, after a Hann window; a bin is one period along the picture."""
    side, periods = 256, 12
    stripes = textures._grating(side, side, angle, periods, wave, phase=0.3)
    assert stripes.dtype == np.float32
    window = np.hanning(side)
    power = np.abs(np.fft.fft2((stripes - stripes.mean()) * window[:, None] * window))
    strongest = np.unravel_index(power.argmax(), power.shape)
    found = np.array([index - side if index > side // 2 else index for index in strongest])
    expected = periods * np.array([math.sin(math.radians(angle)), math.cos(math.radians(angle))])
    # A real picture has the frequency and its mirror image.
    assert min(np.abs(found - expected).max(), np.abs(found + expected).max()) <= 1


@pytest.mark.parametrize("shape", ["disc", "ring", "triangle", "square"])
def test_shape_lies_inside_its_circle_and_fills_its_area(shape):
    """Areas of the unit circle's polygons; the edges are a pixel wide."""
    radius = 80
    areas = {"disc": math.pi * 0.85**2, "ring": math.pi * (1 - 0.5**2), "triangle": 3 * math.sqrt(3) / 4, "square": 2}
    pixels = np.full((300, 300, 3), -1, np.float32)
    textures._paint(np.random.RandomState(0), pixels, 300, shape, radius, 0, (0, 8, "sine"), 0.5, margin=1.2)
    rows, columns = np.nonzero(pixels[:, :, 0] >= 0)
    assert len(rows) == pytest.approx(areas[shape] * radius**2, rel=0.04)
    assert np.ptp(rows) <= 2 * radius + 2
    assert np.ptp(columns) <= 2 * radius + 2


@pytest.mark.parametrize(
    ("changed", "message"), [({"seed": 1}, "of seed 0, not 1"), ({"images": 120}, "of images 100")]
)
def test_other_parameters_need_force(here, tmp_path, changed, message):
    out = tmp_path / "textures"
    textures.make_textures(out, images=100)
    with pytest.raises(DataError, match=rf"textures: holds textures {message}.*; --force"):
        textures.make_textures(out, **{"images": 100, **changed})


def test_set_of_another_kind_is_left_alone(here, tmp_path):
    with pytest.raises(DataError, match="holds textures of source another"):
        generated_set.make_set(_other(tmp_path), "textures", {"source": "mine"}, None)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds train/notes\.txt, which is not part of the set of textures"):
        textures.make_textures(tmp_path, images=100, force=True)


def _other(folder):
    (folder / "manifest.json").write_text(json.dumps({"source": "another", "files": {}}))
    return folder


def test_interrupted_run_leaves_nothing_behind(here, tmp_path, monkeypatch):
    """Neither files nor an open generator, whose processes would go on."""
    closed = []

    def images(count, seed, side):
        try:
            yield from ((f"train/a/{index}.jpg", b"x") for index in range(5))
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    monkeypatch.setattr(textures, "_contents", images)
    with pytest.raises(KeyboardInterrupt):
        textures.make_textures(tmp_path / "textures", images=100)
    assert list(tmp_path.iterdir()) == []
    assert closed == [True]


@pytest.mark.slow
def test_ctrl_c_ends_the_script_in_one_line_and_leaves_nothing(tmp_path):
    out = tmp_path / "textures"
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--out", out, "--images", "5000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not list(tmp_path.rglob("*.jpg")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stdout == ""
    assert stderr.splitlines()[-1] == "make_textures: interrupted; nothing was written"
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


IMPOSSIBLE = [
    ({"images": 99}, "images 99: must be 100, ten of a class, to 10000000"),
    ({"images": 10**20}, "images 100000000000000000000: must be 100"),
    ({"seed": -1}, "seed -1"),
    ({"seed": 2**32}, "seed 4294967296"),
]


@pytest.mark.parametrize(("keywords", "message"), IMPOSSIBLE)
def test_impossible_arguments_are_refused(tmp_path, keywords, message):
    with pytest.raises(DataError, match=message):
        textures.make_textures(tmp_path / "textures", **keywords)


@pytest.mark.slow
def test_script_says_where_and_how_many_and_that_it_is_already_there(tmp_path, complete):
    command = [sys.executable, SCRIPT, "--out", complete, "--images", "104"]
    second = subprocess.run(command, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert second.stdout == f"{complete}: 74 training and 30 validation images, already there\n"
    (tmp_path / "mine").write_text("mine")
    ended = call(make_textures.main, "--out", tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"make_textures: {tmp_path}: not empty, and not a set of textures")
    assert ended.stderr.count("\n") == 1
