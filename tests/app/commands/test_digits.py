"""mixprec digits: what is written, that it is written completely or not at all, and once."""

import functools
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixprec.app.commands import digits as command
from mixprec.app.commands import train
from mixprec.data import digit_images, generated_set
from mixprec.data.data_error import DataError
from mixprec.data.sources.classes import check_same_classes
from mixprec.data.sources.folders import scan_folders
from tests import ROOT
from tests.called import call

SHA256_OF_THE_NAMES = "4f21a43057458eea979577afa3a86d35fbfc70a8911f3e0643731ea01a156ab5"
SHA256_OF_THE_NUMBERS = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The set at the default size, made by the command."""
    out = tmp_path_factory.mktemp("set") / "digits"
    made = subprocess.run([sys.executable, "-m", "mixprec", "digits", out], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{out}: 1442 training and 355 validation images\n"
    return out


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder to write, and 30 images only, so that each test writes little."""
    original = digit_images.load_digits
    monkeypatch.setattr(digit_images, "load_digits", lambda: tuple(part[:30] for part in original()))
    return tmp_path / "digits"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


run = functools.partial(call, command.main)


def test_numbers_are_those_of_scikit_learn():
    """By their digest; where it is installed, by themselves."""
    images, labels = digit_images.load_digits()
    assert (images.shape, images.dtype, labels.dtype) == ((1797, 8, 8), np.uint8, np.int32)
    content = images.tobytes() + labels.astype(np.uint8).tobytes()
    assert hashlib.sha256(content).hexdigest() == SHA256_OF_THE_NUMBERS
    if importlib.util.find_spec("sklearn") is not None:
        from sklearn.datasets import load_digits

        np.testing.assert_array_equal(images, load_digits().images)
        np.testing.assert_array_equal(labels, load_digits().target)


@pytest.mark.slow
def test_set_is_complete_split_by_class_and_readable(complete):
    """A fifth of each class, rounded down, is for validation."""
    sizes = np.bincount(digit_images.load_digits()[1])
    train, val = scan_folders(complete / "train"), scan_folders(complete / "val")
    check_same_classes(train, val)
    assert train.classes == tuple("0123456789")
    np.testing.assert_array_equal(np.bincount(val.labels), sizes // 5)
    np.testing.assert_array_equal(np.bincount(train.labels) + sizes // 5, sizes)
    numbers = sorted(int(Path(file).stem) for file in train.files + val.files)
    assert numbers == list(range(1797))


@pytest.mark.slow
def test_files_show_the_digits_under_their_labels(complete):
    """Reduced to 8x8 again, an image correlates best with the digit of its number, of all 1,797."""
    images, labels = digit_images.load_digits()

    def normalized(pixels):
        centred = pixels.reshape(-1, 64) - pixels.reshape(-1, 64).mean(axis=1, keepdims=True)
        return centred / np.linalg.norm(centred, axis=1, keepdims=True)

    originals = normalized(images.astype(np.float64))
    for path in complete.glob("*/*/*.jpg"):
        with Image.open(path) as image:
            assert (image.mode, image.size) == ("L", (40, 40))
            reduced = np.asarray(image.resize((8, 8), Image.Resampling.BOX), np.float64)
        number = int(path.stem)
        assert (originals @ normalized(reduced)[0]).argmax() == number
        assert labels[number] == int(path.parent.name)


def test_split_and_file_names_never_change(complete):
    """Fixed here: results of different days and machines must be over the same images."""
    names = sorted(name for name in contents(complete) if name.endswith(".jpg"))
    assert hashlib.sha256("\n".join(names).encode()).hexdigest() == SHA256_OF_THE_NAMES


def test_same_bytes_every_time(small, tmp_path):
    digit_images.make_digits(small)
    digit_images.make_digits(tmp_path / "again")
    assert contents(small) == contents(tmp_path / "again")


def test_second_run_writes_nothing(small):
    train, val, made = digit_images.make_digits(small)
    assert made
    times = {path: path.stat().st_mtime_ns for path in small.rglob("*")}
    assert digit_images.make_digits(small) == (train, val, False)
    assert digit_images.make_digits(small, force=True) == (train, val, False)
    assert {path: path.stat().st_mtime_ns for path in small.rglob("*")} == times


def test_other_size_needs_force(small):
    digit_images.make_digits(small, size=32)
    before = contents(small)
    with pytest.raises(DataError, match=r"^\S+/digits: holds digits of size 32, not 48; --force"):
        digit_images.make_digits(small, size=48)
    assert contents(small) == before
    assert digit_images.make_digits(small, size=48, force=True)[2]
    image = next(small.glob("train/*/*.jpg"))
    assert Image.open(io.BytesIO(image.read_bytes())).size == (48, 48)


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_damaged_set_is_noticed_and_made_again_with_force(small, damage):
    digit_images.make_digits(small)
    before = contents(small)
    victim = next(small.glob("train/*/*.jpg"))
    victim.unlink() if damage == "missing" else victim.write_bytes(victim.read_bytes() + b"x")
    name = victim.relative_to(small)
    with pytest.raises(DataError, match=f"{name} (is missing|has been changed); --force"):
        digit_images.make_digits(small)
    assert digit_images.make_digits(small, force=True)[2]
    assert contents(small) == before


@pytest.mark.parametrize("force", [False, True])
def test_foreign_folder_is_left_alone(small, force):
    small.mkdir()
    (small / "thesis.tex").write_text("mine")
    with pytest.raises(DataError, match="not empty, and not a set of digits"):
        digit_images.make_digits(small, force=force)
    (small / "manifest.json").write_text('["another program\'s"]')
    with pytest.raises(DataError, match="not empty, and not a set of digits"):
        digit_images.make_digits(small, force=force)
    assert sorted(contents(small)) == ["manifest.json", "thesis.tex"]


def test_file_of_the_user_inside_a_set_is_not_deleted(small):
    digit_images.make_digits(small, size=32)
    (small / "train" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds train/notes\.txt, which is not part"):
        digit_images.make_digits(small, size=40, force=True)
    assert (small / "train" / "notes.txt").read_text() == "mine"


def test_interrupted_run_leaves_nothing_behind(small, monkeypatch):
    original, written = generated_set._write, []

    def write(path, content):
        if len(written) == 10:
            raise KeyboardInterrupt
        written.append(path)
        original(path, content)

    monkeypatch.setattr(generated_set, "_write", write)
    with pytest.raises(KeyboardInterrupt):
        digit_images.make_digits(small)
    assert list(small.parent.iterdir()) == []


def test_interrupted_replacement_keeps_the_old_set(small, monkeypatch):
    digit_images.make_digits(small, size=32)
    before = contents(small)
    monkeypatch.setattr(digit_images, "_jpeg", lambda pixels, size: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        digit_images.make_digits(small, size=40, force=True)
    assert contents(small) == before
    assert list(small.parent.iterdir()) == [small]


@pytest.mark.parametrize("size", [31, 4097, 99999999999])
def test_size_out_of_32_to_4096_is_refused(small, size):
    ended = run("--out", small, "--size", size)
    assert (ended.returncode, ended.stderr) == (2, f"error: size {size}: must be 32 to 4096 pixels\n")


def test_command_says_where_and_how_many_and_that_it_is_already_there(small, complete):
    """What it says of the whole set when it makes it is seen where that is made."""
    assert json.loads((complete / "manifest.json").read_text())["size"] == 40
    assert run(complete).stdout == f"{complete}: 1442 training and 355 validation images, already there\n"
    first = run("--out", small, "--size", 32)
    assert first.returncode == 0, first.stderr
    train, val = (len(list(small.glob(f"{part}/*/*.jpg"))) for part in ("train", "val"))
    assert train + val == 30
    assert first.stdout == f"{small}: {train} training and {val} validation images\n"
    assert json.loads((small / "manifest.json").read_text())["size"] == 32
    assert run("--out", small, "--size", 32).stdout == f"{first.stdout[:-1]}, already there\n"


@pytest.mark.parametrize("case", ["foreign", "unwritable"])
def test_command_ends_with_one_line_and_code_2(tmp_path, case):
    (tmp_path / "file").write_text("mine")
    out = tmp_path if case == "foreign" else tmp_path / "file" / "digits"
    ended = run("--out", out)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"error: {out}: ")


def test_a_folder_that_is_given_twice_is_refused(tmp_path):
    ended = run(tmp_path / "a", "--out", tmp_path / "b")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: argument --out: the folder is given already (see --help)\n"


def test_training_without_the_set_names_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = call(train.main, "--config", "digits.yaml", "--set", "data.loader=pillow", "--set", "training.device=cpu")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: data/digits/train: no such file or folder; ")
    assert ended.stderr.endswith("; this writes them: mixprec digits data/digits\n")


def test_what_a_killed_process_has_left_is_removed(small):
    for folder in (
        small.with_name(".digits.4194305.tmp"),
        small.with_name(".other.4194305.tmp"),
        small.with_name(f".digits.{os.getppid()}.tmp"),
    ):
        (folder / "train").mkdir(parents=True)
    digit_images.make_digits(small)
    assert sorted(path.name for path in small.parent.iterdir()) == sorted(
        ["digits", ".other.4194305.tmp", f".digits.{os.getppid()}.tmp"]
    )
