"""mixprec.data.sources.file_list and .sources: lists are read as Chainer reads them, and refused by line."""

import tarfile

import chainer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mixprec.data.sources import scan
from mixprec.data.sources.file_list import _read, scan_list
from mixprec.data.sources.opening import open_images
from tests.data.refusal import refused


@pytest.fixture
def root(tmp_path):
    """Images ``a.jpg`` ... ``d.jpg``, and ``cat/0.jpg``, ``cat/1.jpg``, ``dog/0.jpg``, ``dog/1.jpg``."""
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "d", "cat/0", "cat/1", "dog/0", "dog/1"):
        path = tmp_path / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(path)
    return tmp_path


def write(root, *lines):
    path = root / "list.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return path


def test_list_is_read_in_its_order(root):
    path = write(root, "c.jpg 7", "a.jpg 0", "b.jpg 7")
    images = scan_list(path)
    assert images.root == str(path)
    assert images.files == ("c.jpg", "a.jpg", "b.jpg")
    assert images.labels.dtype == np.int32
    np.testing.assert_array_equal(images.labels, [7, 0, 7])
    assert images.classes == tuple(map(str, range(8)))
    assert not images.named
    assert images.paths() == [f"{root}/{name}.jpg" for name in "cab"]
    assert images.name(0) == f"{root}/c.jpg"
    assert images.where(2) == f"{path}:3"
    assert images.read(1) == (root / "a.jpg").read_bytes()


def test_list_is_read_as_chainer_reads_it(root):
    path = write(root, "cat/0.jpg 1", "  a.jpg\t0 ", "d.jpg   5")
    theirs = chainer.datasets.LabeledImageDataset(str(path), str(root))
    ours = scan_list(path, root)
    assert len(ours) == len(theirs)
    for index in range(len(theirs)):
        pixels, label = theirs[index]
        with Image.open(ours.path(index)) as image:
            np.testing.assert_array_equal(pixels, np.asarray(image, np.float32).transpose(2, 0, 1))
        assert ours.labels[index] == label


def test_paths_are_relative_to_the_list_or_to_root_or_absolute(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("lists")
    assert scan_list(write(elsewhere, "a.jpg 0", f"{root}/b.jpg 1"), root).paths() == [f"{root}/a.jpg", f"{root}/b.jpg"]
    assert scan_list(write(root / "cat", "0.jpg 0", "../a.jpg 1")).read(1) == (root / "a.jpg").read_bytes()


def test_empty_lines_spaces_in_paths_windows_lines_and_byte_order_mark(root):
    (root / "a.jpg").rename(root / "a  b.jpg")
    path = root / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfb.jpg 1\r\n\r\n  \r\na  b.jpg 0\r\nc.jpg 1")
    images = scan_list(path)
    assert images.files == ("b.jpg", "a  b.jpg", "c.jpg")
    np.testing.assert_array_equal(images.line_numbers, [1, 4, 5])


@pytest.mark.parametrize("line", ["a.jpg", "a.jpg,0"])
def test_line_that_is_not_path_and_label_is_named(root, line):
    path = write(root, "b.jpg 0", "", line)
    assert refused(scan_list, path) == f"{path}:3: {line!r}: a line must be 'path label'"


@pytest.mark.parametrize("label", ["one", "0.0", "+1", "1_0", "\N{SUPERSCRIPT TWO}"])
def test_label_that_is_not_an_integer_is_named(root, label):
    path = write(root, "b.jpg 0", "", f"a.jpg {label}")
    end = f"a line must be 'path label'; its label must be an integer; found {label!r}"
    assert refused(scan_list, path) == f"{path}:3: 'a.jpg {label}': {end}"


@pytest.mark.parametrize("label", [-1, 10**30])
def test_label_that_cannot_be_is_named(root, label):
    path = write(root, "b.jpg 0", f"a.jpg {label}")
    assert refused(scan_list, path) == f"{path}:2: label {label}: must be 0 to 999999"


def test_file_that_is_no_list_is_refused_in_one_short_line(root):
    message = refused(scan_list, root / "a.jpg")
    assert message.startswith(f"{root}/a.jpg:1: ")
    assert message.isprintable()
    assert len(message) < 400
    assert refused(scan_list, write(root, "", " ")) == f"{root}/list.txt: no images; each line must be 'path label'"
    assert refused(scan_list, root) == f"{root}: cannot be read as a list of images (Is a directory)"
    assert (
        refused(scan_list, root / "gone.txt")
        == f"{root}/gone.txt: cannot be read as a list of images (No such file or directory)"
    )


def test_image_may_be_listed_twice_with_one_label(root):
    assert len(scan_list(write(root, "a.jpg 1", "b.jpg 0", "a.jpg 1", "./a.jpg 1"))) == 4


def test_image_with_two_labels_is_refused(root):
    path = write(root, "a.jpg 1", "b.jpg 0", "./a.jpg 2")
    assert refused(scan_list, path) == f"{path}:3: label 2 for ./a.jpg, which has label 1 in line 1"


def test_line_that_disagrees_with_the_class_folders_is_refused(root):
    path = write(root, "cat/0.jpg 0", "dog/0.jpg 1", "cat/1.jpg 1", "dog/1.jpg 1")
    assert refused(scan_list, path) == f"{path}:3: label 1 for cat/1.jpg, but its folder has label 0, as in line 1"


def test_missing_file_is_named(root):
    path = write(root, "a.jpg 1", "gone.jpg 0", "b.jpg 0", "gone_too.jpg 0")
    others = f"(and 1 more: {root}/gone_too.jpg)"
    assert refused(scan_list, path) == f"{root}/gone.jpg: No such file or directory {others}; {scan.LEAVE_OUT}"
    images = scan_list(path, None, "skip")
    assert images.files == ("a.jpg", "b.jpg")
    assert images.skipped == tuple((f"{root}/{name}.jpg", "No such file or directory") for name in ("gone", "gone_too"))
    assert images.where(1) == f"{path}:3"


def test_root_that_is_wrong_is_said(root, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("lists"), "a.jpg 1", "b.jpg 0")
    message = refused(scan_list, path)
    assert message.startswith(f"{path}:1: {path.parent}/a.jpg: no such file, nor any other of the list")
    assert f"looked for in {path.parent}, root says where else" in message


def test_fingerprint_depends_on_files_labels_and_order(root):
    lists = [["a.jpg 0", "b.jpg 1"], ["b.jpg 1", "a.jpg 0"], ["a.jpg 0", "b.jpg 0"], ["a.jpg 0", "c.jpg 1"]]
    seen = {scan_list(write(root, *lines)).fingerprint for lines in lists}
    assert len(seen) == len(lists)
    assert scan_list(write(root, "", *lists[0])).fingerprint in seen


_WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.lists(_WORDS, min_size=1, max_size=3).map(" ".join), st.integers(0, 50)), min_size=1))
def test_what_is_written_is_what_is_read(tmp_path_factory, pairs):
    path = write(tmp_path_factory.mktemp("list"), *(f"{file} {label}" for file, label in pairs))
    files, labels, numbers = _read(path)
    assert [*zip(files, labels, strict=True)] == pairs
    assert [*numbers] == [*range(1, len(pairs) + 1)]


def test_open_images_finds_out_what_it_is(root):
    folder = root / "classes"
    folder.mkdir()
    for name in ("cat", "dog"):
        (root / name).rename(folder / name)
    assert open_images(folder).classes == ("cat", "dog")
    assert open_images(write(root, "a.jpg 0")).files == ("a.jpg",)
    assert open_images(write(folder, "a.jpg 0"), root=root).path(0) == f"{root}/a.jpg"
    (folder / "cat.tar").touch()  # what the folder came out of
    assert open_images(folder).classes == ("cat", "dog")
    assert open_images(folder, "folders").classes == ("cat", "dog")


def test_open_images_opens_shards(root):
    folder = root / "shards"
    folder.mkdir()
    (root / "0.cls").write_text("3")
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            tar.add(root / "a.jpg", "0.jpg")
            tar.add(root / "0.cls", "0.cls")
    for form in ("auto", "webdataset"):
        images = open_images(folder, form)
        assert images.format == "webdataset"
        np.testing.assert_array_equal(images.labels, [3, 3])
        assert images.read(1) == (root / "a.jpg").read_bytes()
    expected = f"{folder}: the shards in it are of format 'webdataset', not 'tfrecord'"
    assert refused(open_images, folder, "tfrecord") == expected


WRONG = [
    (("gone",), "{root}/gone: no such file or folder"),
    (("cat", "zip"), "format 'zip': must be one of 'auto', 'folders', 'list', 'tfrecord', 'webdataset'"),
    (("cat", "auto", "/x"), "root /x: only for lists, but {root}/cat is a folder"),
    (("cat", "list"), "{root}/cat: cannot be read as a list of images (Is a directory)"),
    (("list.txt", "folders"), "{root}/list.txt: cannot be read as a folder of images (Not a directory)"),
    (("cat",), "{root}/cat: no class folders; images must lie in {root}/cat/<class>/"),
    (("list.txt", "list", None, "ignore"), "on_error 'ignore': must be 'stop' or 'skip'"),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG)
def test_open_images_says_what_is_wrong(root, arguments, expected):
    write(root, "a.jpg 0")
    name, *rest = arguments
    assert refused(open_images, root / name, *rest) == expected.format(root=root)
