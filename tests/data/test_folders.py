"""Class folders: what is found, what is refused and how it is named, and that images are checked once."""

import errno
import os

import numpy as np
import pytest
from PIL import Image

from mixprec.data.data_error import DataError
from mixprec.data.sources import folders, scan
from mixprec.data.sources.folders import scan_folders
from mixprec.data.sources.opening import open_images
from tests.data.refusal import refused


@pytest.fixture
def root(tmp_path):
    """Two classes: ``cat`` with two images, ``dog`` with one."""
    rng = np.random.default_rng(0)
    for name in ("dog/a.jpg", "cat/b.png", "cat/a.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(tmp_path / name)
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """The paths that were decoded, in any order."""
    seen = []
    original = folders.image_problem
    monkeypatch.setattr(folders, "image_problem", lambda path: seen.append(path) or original(path))
    return seen


def test_classes_and_files_are_sorted_and_labels_count_classes(root):
    images = scan_folders(root)
    assert images.root == str(root)
    assert images.classes == ("cat", "dog")
    assert images.files == ("cat/a.jpg", "cat/b.png", "dog/a.jpg")
    assert images.labels.dtype == np.int32
    np.testing.assert_array_equal(images.labels, [0, 0, 1])
    assert len(images) == 3
    assert images.paths()[2] == str(root / "dog" / "a.jpg")


def test_hidden_entries_and_files_beside_the_class_folders_are_left_out(root):
    (root / ".trash").mkdir()
    (root / ".trash" / "a.jpg").write_bytes(b"no image")
    (root / "cat" / ".DS_Store").write_bytes(b"no image")
    (root / "manifest.json").write_text("{}")
    assert scan_folders(root).files == ("cat/a.jpg", "cat/b.png", "dog/a.jpg")


def test_files_that_are_no_images_by_name_are_left_out(root):
    for name in ("Thumbs.db", "notes.TXT", "README", "labels.csv", "a.jpg.bak", "desktop.ini", "x.npy"):
        (root / "cat" / name).write_bytes(b"no image")
    (root / "cat" / "n0").write_bytes((root / "cat" / "b.png").read_bytes())  # an image without an extension
    assert scan_folders(root).files == ("cat/a.jpg", "cat/b.png", "cat/n0", "dog/a.jpg")


def test_a_file_with_the_name_of_an_image_must_be_one(root):
    (root / "cat" / "c.gif").write_bytes(b"no image")
    assert refused(scan_folders, root).startswith(f"{root}/cat/c.gif: not an image in a known format")


def test_empty_class_folder_is_named(root):
    (root / "eel").mkdir()
    (root / "eel" / ".gitkeep").touch()
    assert refused(scan_folders, root).startswith(f"{root}/eel: no images")


def test_folder_inside_a_class_folder_is_named(root):
    (root / "cat" / "more").mkdir()
    assert refused(scan_folders, root) == f"{root}/cat/more: a folder, where an image should be; {scan.LEAVE_OUT}"


def test_up_to_ten_bad_files_are_named(root):
    for number in range(12):
        (root / "cat" / f"bad{number:02}.jpg").touch()
    others = ", ".join(f"cat/bad{number:02}.jpg" for number in range(1, 10))
    expected = f"{root}/cat/bad00.jpg: the file is empty (and 11 more: {others}, ...); {scan.LEAVE_OUT}"
    assert refused(scan_folders, root) == expected


@pytest.mark.parametrize("name", ["Thumbs.db", "notes.txt", "LABELS.CSV"])
def test_what_is_no_image_by_its_name_is_left_out(root, name):
    before = scan_folders(root)
    (root / "cat" / name).write_text("words")
    after = scan_folders(root)
    assert (after.files, after.skipped) == (before.files, ())


def test_folder_of_sets_instead_of_a_set_is_named(root, tmp_path_factory):
    above = tmp_path_factory.mktemp("imagenet")
    root.rename(above / "train")
    for on_error in ("stop", "skip"):
        expected = f"{above}/train/cat: a folder, where an image should be (and 1 more: train/dog); no image is left"
        assert refused(scan_folders, above, on_error) == f"{expected}; give the folder that holds the class folders"


def test_class_folder_that_is_a_link_to_itself_is_named(root):
    (root / "loop").symlink_to(root / "loop")
    assert refused(scan_folders, root) == f"{root}/loop: {os.strerror(errno.ELOOP)}"


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY cut off", b"garbage"])
def test_unusable_cache_only_costs_the_check(root, decoded, cache_home, content):
    scan_folders(root)
    (cache,) = (cache_home / "mixprec").iterdir()
    cache.write_bytes(content)
    decoded.clear()
    scan_folders(root)
    assert len(decoded) == 3
    decoded.clear()
    scan_folders(root)
    assert decoded == []


def test_cache_that_cannot_be_written_is_a_warning(root, cache_home, caplog):
    (cache_home / "mixprec").write_text("a file where the folder should be")
    assert len(scan_folders(root)) == 3
    assert "cannot note which images are good" in caplog.text


def test_fingerprints_depend_on_names_labels_and_sizes_but_not_on_the_place(root, tmp_path_factory):
    before = scan_folders(root)
    moved = root.rename(tmp_path_factory.mktemp("elsewhere") / "data")
    images = scan_folders(moved)
    assert (images.fingerprint, images.size_fingerprint) == (before.fingerprint, before.size_fingerprint)
    lines = moved / "list.txt"
    lines.write_text("".join(f"{name} {label}\n" for name, label in zip(images.files, images.labels, strict=True)))
    assert open_images(lines).size_fingerprint == before.size_fingerprint
    first, second = (moved / name for name in before.files[:2])
    contents = second.read_bytes() + b"\0", first.read_bytes()
    for path, content in zip((first, second), contents, strict=True):
        path.write_bytes(content)
    swapped = scan_folders(moved)
    assert swapped.fingerprint == before.fingerprint
    assert swapped.size_fingerprint != before.size_fingerprint
    (moved / "cat" / "x.jpg").write_bytes(b"")
    left = scan_folders(moved, on_error="skip")
    assert (len(left.skipped), left.size_fingerprint) == (1, swapped.size_fingerprint)
    first.rename(moved / "dog" / "b.jpg")
    assert scan_folders(moved, on_error="skip").fingerprint != before.fingerprint


def test_bad_files_are_left_out_and_told_when_asked_for(root):
    content = (root / "cat" / "a.jpg").read_bytes()
    (root / "cat" / "b.png").write_bytes(b"")
    (root / "cat" / "c.jpg").write_bytes(content[:-50])
    (root / "cat" / "d.jpg").symlink_to(root / "gone.jpg")
    (root / "cat" / "e").mkdir()
    (root / "dog" / "b.jpg").write_bytes(content)
    images = scan_folders(root, "skip")
    assert images.files == ("cat/a.jpg", "dog/a.jpg", "dog/b.jpg")
    np.testing.assert_array_equal(images.labels, [0, 1, 1])
    assert [name for name, _ in images.skipped] == [f"{root}/cat/{name}" for name in ("b.png", "c.jpg", "d.jpg", "e")]
    assert [reason.partition(" (")[0] for _, reason in images.skipped] == [
        "the file is empty",
        "image file is truncated",
        "No such file or directory",
        "a folder, where an image should be",
    ]


def test_class_of_which_no_image_is_left_is_named(root):
    (root / "dog" / "a.jpg").write_bytes(b"")
    (root / "dog" / "b.jpg").write_bytes(b"")
    (root / "cat" / "a.jpg").write_bytes(b"")
    assert refused(scan_folders, root, "skip") == (
        f"{root}: no image is left of class 'dog': {root}/dog/a.jpg: the file is empty (and 1 more)"
    )


def test_file_that_is_deleted_after_the_scan_is_named(root):
    images = scan_folders(root)
    assert images.read(0) == (root / "cat" / "a.jpg").read_bytes()
    (root / "cat" / "a.jpg").unlink()
    with pytest.raises(DataError, match=f"^{root}/cat/a.jpg: No such file or directory$"):
        images.read(0)


def test_names_with_spaces_newlines_and_other_alphabets_are_names(root):
    names = ["a b.jpg", "a\nb.jpg", "\N{SNOWMAN}.jpg", "-.jpg"]
    for name in names:
        (root / "cat" / name).write_bytes((root / "cat" / "a.jpg").read_bytes())
    images = scan_folders(root)
    assert {f"cat/{name}" for name in names} < set(images.files)
    index = images.files.index("cat/a\nb.jpg")
    assert images.name(index) == f"{root}/cat/a\\nb.jpg"
    assert images.path(index) == images.paths()[index] == f"{root}/cat/a\nb.jpg"
    assert images.read(index) == images.read(0)


def test_bad_file_with_a_newline_in_its_name_is_named_in_one_line(root):
    (root / "cat" / "a\nb.jpg").touch()
    assert refused(scan_folders, root) == f"{root}/cat/a\\nb.jpg: the file is empty; {scan.LEAVE_OUT}"


def test_order_of_classes_is_that_of_code_points_whatever_the_locale(tmp_path):
    for name in ("b", "a10", "a9", "B", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", "_"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (2, 2)).save(tmp_path / name / "x.png")
    expected = ("B", "_", "a10", "a9", "b", "\N{LATIN SMALL LETTER A WITH DIAERESIS}")
    assert scan_folders(tmp_path).classes == expected
