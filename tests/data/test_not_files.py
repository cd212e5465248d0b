"""What is no regular file where one should be: it is refused by name, and neither opened nor read."""

import os
import socket

import pytest
from PIL import Image

from mixprec.app.commands import pack
from mixprec.base import files
from mixprec.data.data_error import DataError
from mixprec.data.sources.opening import open_images
from tests.called import call
from tests.data.refusal import refused
from tests.guard import guarded

NO_FILE = "a device, pipe or socket, not a file"


def pipe(path):
    os.mkfifo(path)


def zero(path):
    os.symlink("/dev/zero", path)


def listening(path):
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path has at most 108 bytes
        finally:
            os.close(folder)


ODD = pytest.mark.parametrize("make", [pipe, zero, listening])


@pytest.fixture(autouse=True)
def _bounded(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with guarded():
        yield


@pytest.fixture
def folder(tmp_path):
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (9, 9), "red").save(tmp_path / "images" / name / "1.png")
    return tmp_path / "images"


@ODD
def test_only_a_regular_file_is_opened(make, tmp_path):
    path = tmp_path / "odd"
    make(path)
    for use in (files.open_regular, lambda path: files.read(path, 10), lambda path: files.write_text(path, "a")):
        with pytest.raises(OSError, match=NO_FILE):
            use(path)
    assert os.listdir(tmp_path) == ["odd"]


def test_a_pipe_that_takes_the_place_of_a_file_just_then_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a")
    os.mkfifo(tmp_path / "pipe")
    status = os.stat(tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: status)
        with pytest.raises(OSError, match=NO_FILE):
            files.open_regular(tmp_path / "pipe")


def test_a_file_is_read_up_to_a_size(tmp_path):
    (tmp_path / "file").write_bytes(2048 * b"a")
    assert files.read(tmp_path / "file", 2048) == 2048 * b"a"
    with pytest.raises(OSError, match="larger than 1 KiB"):
        files.read(tmp_path / "file", 1024)
    assert files.read("/proc/self/comm", 1024)  # its size is 0, it says


@ODD
@pytest.mark.parametrize("form", ["auto", "list", "folders", "tfrecord", "webdataset"])
def test_data_that_are_no_file_and_no_folder_are_refused(make, form, tmp_path):
    make(tmp_path / "odd")
    assert refused(open_images, tmp_path / "odd", form).startswith(f"{tmp_path}/odd: cannot be read as a ")


@ODD
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_an_image_that_is_no_file_is_a_bad_image(make, on_error, folder):
    make(folder / "a" / "0.png")
    if on_error == "skip":
        assert open_images(folder, on_error="skip").skipped == ((f"{folder}/a/0.png", NO_FILE),)
    else:
        with pytest.raises(DataError, match=f"/a/0.png: {NO_FILE}; leave out bad images by "):
            open_images(folder)


@ODD
def test_an_image_that_has_become_another_thing_since_it_was_checked_is_named(make, folder):
    images = open_images(folder)
    os.remove(folder / "a" / "1.png")
    make(folder / "a" / "1.png")
    with pytest.raises(DataError, match=f"/a/1.png: {NO_FILE}$"):
        images.read(0)


@ODD
@pytest.mark.parametrize("name", ["1.tar", "1.tfrecord"])
def test_a_shard_that_is_no_file_is_refused(make, name, tmp_path):
    (tmp_path / "shards").mkdir()
    make(tmp_path / "shards" / name)
    with pytest.raises(DataError, match=f"/shards/{name}: {NO_FILE}$"):
        open_images(tmp_path / "shards")


@ODD
@pytest.mark.parametrize("name", ["manifest.json", "packing.json"])
def test_notes_of_packing_that_are_no_file_are_refused(make, name, folder, tmp_path):
    out = tmp_path / "packed"
    out.mkdir()
    make(out / name)
    packed = call(pack.main, "--source", folder, "--out", out, "--format", "tfrecord")
    assert packed.returncode == 2
    assert packed.stderr == f"error: {out}/{name}: {NO_FILE}\n"
    if name == "manifest.json":
        verified = call(pack.main, "--verify", out)
        assert verified.returncode == 2
        assert verified.stderr == f"error: {out}/manifest.json: {NO_FILE}\n"


def test_links_of_folders_that_go_round_in_a_circle_are_named(folder):
    os.symlink("c", folder / "c")
    with pytest.raises(DataError, match=r"/images/c: Too many levels of symbolic links$"):
        open_images(folder)
    os.remove(folder / "c")
    os.symlink("..", folder / "c")
    with pytest.raises(DataError, match=r"/images/c/images: a folder, where an image should be; leave out "):
        open_images(folder)
    os.remove(folder / "c")
    os.symlink(folder, folder / "a" / "again")
    assert [name for name, _ in open_images(folder, on_error="skip").skipped if "again" in name]


@pytest.mark.parametrize("character", ["a", "\0", " "])
def test_a_line_of_a_list_that_does_not_end_is_refused(character, tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("a.png 0\n" + 9000 * character)
    os.truncate(path, 1 << 34)  # zeros that take no room on the disk
    with pytest.raises(DataError, match=r"/list\.txt:2: more than 8192 characters in a line$"):
        open_images(path)
