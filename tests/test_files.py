"""Files that are reached through no link, and are written whole."""

import os

import pytest

from mixprec.base import files


@pytest.fixture
def root(tmp_path):
    """A folder that a link leads to, with a folder ``run`` in it, and a secret beside it."""
    (tmp_path / "real" / "run").mkdir(parents=True)
    (tmp_path / "root").symlink_to(tmp_path / "real")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "file").write_text("secret")
    (tmp_path / "real" / "run" / "file").write_text("mine")
    return tmp_path / "root"


def test_a_file_below_a_root_is_read_and_replaced(root):
    with files.closed(root, root / "run"):
        assert files.read(root / "run" / "file", 100) == b"mine"
        files.write_text(root / "run" / "file", "new")
        files.write_text(root / "run" / "other", "new")
    assert (root / "run" / "file").read_text() == "new"
    assert sorted(os.listdir(root / "run")) == ["file", "other"]


@pytest.mark.parametrize("folder", ["run", "deep/run"])
def test_no_link_below_a_root_is_followed(root, tmp_path, folder):
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "link").symlink_to(tmp_path / "secret")
    (root / "away").symlink_to(tmp_path / "secrets")
    with files.closed(root, root):
        with pytest.raises(OSError, match="a link, which is not followed") as caught:
            files.read(root / folder / "link", 100)
        assert caught.value.filename == str(root / folder / "link")
        with pytest.raises(NotADirectoryError):
            files.open_below(root, root / "away" / "file")
        with pytest.raises(NotADirectoryError):
            files.write_text(root / "away" / "file", "x")
        files.write_text(root / folder / "link", "in its place")
    assert (tmp_path / "secret").read_text() == (tmp_path / "secrets" / "file").read_text() == "secret"
    assert not (root / folder / "link").is_symlink()


def test_a_folder_that_becomes_a_link_while_it_is_used_leads_nowhere_else(root, tmp_path):
    with files.folder_below(root, root / "run") as handle:
        (root / "run").rename(root / "moved")
        (root / "run").symlink_to(tmp_path / "secrets")
        with files.open_regular("file", follow=False, dir_fd=handle) as file:
            assert file.read() == b"mine"
        with files.listing(handle) as entries:
            assert [entry.name for entry in entries] == ["file"]


def test_outside_of_closed_folders_links_are_followed(root, tmp_path):
    (tmp_path / "data").symlink_to(tmp_path / "secret")
    with files.closed(root, root / "run"):
        assert files.read(tmp_path / "data", 100) == b"secret"
        assert not files.is_closed(root / "running")
        assert files.is_closed(root / "run" / "x")
    assert not files.is_closed(root / "run" / "x")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_opened(root, make):
    make(root / "run" / "strange")
    with files.closed(root, root / "run"), pytest.raises(OSError, match=r"not a file|Is a directory"):
        files.read(root / "run" / "strange", 100)


def test_what_lies_elsewhere_is_refused(root):
    with pytest.raises(OSError, match="not below"):
        files.open_below(root / "run", root / "secret")


def test_a_folder_that_is_missing_is_named_by_the_file_that_was_given(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, files.replacing(tmp_path / "none" / "a.onnx"):
        raise AssertionError
    assert caught.value.filename == str(tmp_path / "none" / "a.onnx")


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/stderr", "/dev/null", "/proc/self/fd/1"])
def test_a_device_is_not_replaced_by_a_file(path):
    """Root could: the rename would take the name of the link, also where standard output is a file."""
    with pytest.raises(OSError, match=r"link, which is not followed|a device, pipe or socket"):
        files.check_writable(path)
