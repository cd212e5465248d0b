"""The folder of an export: what is in it after a success, a failure and a death; and folders that are of no use."""

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest

pytest.importorskip("onnx", reason="ONNX is not installed: extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra export")

from mixprec.app.commands import export as export_command
from mixprec.app.finished import out_folder
from tests import ROOT
from tests.app.finished.runs import export


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def earlier(exported, tmp_path):
    """A folder with the files of an earlier export, and a note of the user's."""
    folder = tmp_path / "earlier"
    shutil.copytree(exported, folder)
    (folder / "model_notes.onnx.txt").write_text("mine")
    return folder


def test_files_of_an_earlier_export_go(work, earlier):
    """Those that the new one has not: the file beside ``export.json`` is always of that export."""
    (earlier / "model_int8.failed.onnx").write_bytes(b"old")
    code, found = export(work, earlier)
    assert code == 0
    assert [row["name"] for row in found["rows"]] == ["mixprec FP32", "model.onnx"]
    assert {path.name for path in earlier.iterdir()} == {
        *("model.onnx", "export.json", "export.png", "model_notes.onnx.txt")
    }


@contextlib.contextmanager
def small_disk():
    """No file becomes larger than that of the float32 network, which is the first one that is too large."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_a_full_disk_leaves_the_folder_as_it_was(work, earlier, tmp_path, capsys):
    before = contents(tmp_path)
    for out in (earlier, tmp_path / "new" / "folder"):
        with small_disk():
            code, _ = export(work, out)
        assert (code, capsys.readouterr().err) == (2, f"error: {out}: File too large\n")
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["earlier"]


def test_a_disk_that_says_at_the_end_that_it_is_full(earlier, monkeypatch):
    """As one with a quota on another machine: for the last file, and only when that is synced."""
    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    before = contents(earlier)
    with pytest.raises(OSError, match="No space left on device") as caught:
        out_folder.replace(earlier, dict.fromkeys(("model.onnx", "export.png", "export.json"), b"new"))
    assert caught.value.filename == earlier
    assert contents(earlier) == before


KILLED = """
import os, signal, sys
from mixprec.app.finished import out_folder

real, calls = os.{call}, []

def killed(*arguments):
    calls.append(arguments)
    if len(calls) == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

os.{call} = killed
out_folder.replace(sys.argv[1], {{name: b"new" for name in ("model.onnx", "export.png", "export.json")}})
"""


@pytest.mark.parametrize(("call", "number"), [("open", 1), ("fsync", 2), ("fsync", 3), ("replace", 1)])
def test_a_process_that_is_killed_leaves_the_old_files_whole(call, number, tmp_path):
    names = ("model.onnx", "model_int8.onnx", "export.png", "export.json")
    for name in names:
        (tmp_path / name).write_text("old")
    program = KILLED.format(call=call, number=number)
    done = subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")
    assert [(tmp_path / name).read_text() for name in names] == ["old"] * 4
    # What it has left behind is in nobody's way.
    out_folder.replace(tmp_path, dict.fromkeys(names, b"new"))
    assert [(tmp_path / name).read_text() for name in names] == ["new"] * 4


def test_a_folder_that_is_of_no_use_is_found_before_anything_is_computed(work, tmp_path, monkeypatch, capsys):
    def opened(*_):
        raise AssertionError("the run was opened")

    monkeypatch.setattr(export_command, "open_run", opened)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for out, reason in (
        ("file", "not a folder"),
        ("file/below", "Not a directory"),
        ("/proc", "No such file or directory"),  # nobody can make a file there
    ):
        assert export_command.main(["--run", str(work / "run"), "--out", out], {}) == 2
        assert capsys.readouterr().err == f"error: {out}: {reason}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_folders_that_were_made_are_removed(tmp_path):
    (tmp_path / "mine").mkdir()

    class Failed(BaseException):
        pass

    def fail(out, note=None):
        with out_folder.tried(tmp_path / out):
            assert list((tmp_path / out).iterdir()) == []
            if note is not None:
                (tmp_path / note).write_text("of someone else")
            raise Failed

    for out in ("mine", "mine/new", "new/and/deep"):
        with pytest.raises(Failed):
            fail(out)
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    with pytest.raises(Failed):
        fail("new/deep", note="new/note")
    assert {path.name for path in tmp_path.rglob("*")} == {"mine", "new", "note"}
